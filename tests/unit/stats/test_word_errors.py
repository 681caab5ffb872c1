"""Wrong words: their counts, and two servers compared sentence by sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from omni_cli.measure.bench.quality import count_word_errors
from omni_cli.records.metrics import WORD_ERRORS
from omni_cli.records.record import Sample, Variant
from omni_cli.report.comparison_view import comparison_verdict
from omni_cli.report.comparison_words import Labels, words_sentence
from omni_cli.report.units import word_for
from omni_cli.stats.blocks import get_summaries
from omni_cli.stats.comparable import work_differences
from omni_cli.stats.compare import Compared, Doubt, compare_variants
from omni_cli.stats.verdicts import Pair

WORDS = 10


@pytest.mark.parametrize(
    ("expected", "said", "deletions", "insertions", "substitutions"),
    [
        ("a b c d", "a b c d", 0, 0, 0),
        ("a b c d", "a c d", 1, 0, 0),
        ("a b c d", "", 4, 0, 0),
        ("a b c d", "a x c d", 0, 0, 1),
        ("a b c d", "a b b c d e", 0, 2, 0),
        ("a b c d", "b c d e", 1, 1, 0),
        ("a b c d", "x y", 2, 0, 2),
        ("a b", "x y z", 0, 1, 2),
    ],
)
def test_counts(expected: str, said: str, deletions: int, insertions: int, substitutions: int) -> None:
    found = count_word_errors(expected.split(), said.split())
    kinds = deletions, insertions, substitutions
    assert [found[name] * found["words"] for name in WORD_ERRORS] == pytest.approx([sum(kinds), *kinds])


@pytest.mark.parametrize(("said", "wrong"), [("", 0.0), ("a b", 1.0)])
def test_a_text_without_words(said: str, wrong: float) -> None:
    assert count_word_errors([], said.split()) == {
        "words": 0.0, "wer": wrong, "deletions": 0.0, "insertions": wrong, "substitutions": 0.0
    }  # fmt: skip


def speaker(name: str, errors: np.ndarray, *, position: int = 0, sentences: int | None = None) -> Variant:
    """Windows of ten sentences of ten words, with `errors` (windows, 10) of words that are left out in each."""
    samples = []
    for number, row in enumerate(errors):
        shares, numbers = tuple(float(count) / WORDS for count in row), range(10 * number, 10 * number + 10)
        columns = {
            "e2e_s": (0.2,) * 10, "sentence": tuple(float(n % (sentences or 10**6)) for n in numbers),
            "words": (float(WORDS),) * 10, "wer": shares, "deletions": shares,
        }  # fmt: skip
        metrics = {"wer": sum(shares) / 10, "deletions": sum(shares) / 10, "requests_per_second": 10.0}
        samples.append(
            Sample(
                block=number // 2, position=position + 2 * (number % 2), number=number, e2e_s=0.2, metrics=metrics,
                work={"requests": 10.0, "words": 10.0 * WORDS}, requests=columns,
            )
        )  # fmt: skip
    return Variant(name=name, samples=tuple(samples))


def compare(a: np.ndarray, b: np.ndarray, sentences: int | None = None) -> Compared:
    pair = speaker("a", a, sentences=sentences), speaker("b", b, position=1, sentences=sentences)
    (found,) = compare_variants(*pair, same_record=True, metrics=["wer"])
    return found


def noise(seed: int, share: float = 0.1, windows: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).binomial(WORDS, share, (windows, 10))


def test_words_that_are_left_out_are_found_below_the_recognisers_own_errors() -> None:
    """One word of twenty more, beside one of ten that is heard wrong on both sides: by sentences, they cancel."""
    heard_wrong = noise(0)
    result = compare(heard_wrong, heard_wrong + noise(1, 0.05)).result
    assert result.a_median == pytest.approx(0.1, abs=0.015) and result.b_median == pytest.approx(0.15, abs=0.02)
    assert result.verdict == "slower" and word_for(result.metric, result.verdict) == "worse" and result.blocks == 8
    low, high = result.ci95 or (0.0, 0.0)
    assert 1.2 < low < result.ratio < high < 2, "16 windows as single values would give no bound above 1.1"
    shuffled = np.random.default_rng(2).permutation(heard_wrong.ravel()).reshape(heard_wrong.shape)
    estimates = [compare(heard_wrong, other + noise(1, 0.05)).estimate for other in (heard_wrong, shuffled)]
    assert estimates[0].standard_error < 0.7 * estimates[1].standard_error


def test_equal_servers_are_not_told_apart() -> None:
    verdicts = [compare(noise(2 * seed), noise(2 * seed + 1)).result.verdict for seed in range(100)]
    assert not {"slower", "faster"} & set(verdicts)


def test_a_difference_of_less_than_one_word_in_a_hundred_is_none() -> None:
    none, few = np.zeros((40, 10), int), np.zeros((40, 10), int)
    few[::10, 0] = 1
    assert compare(none, none).result.verdict == "no difference"
    assert compare(none, few).result.verdict == "no difference"


def test_a_sentence_that_comes_again_counts_once() -> None:
    """The same ten sentences in sixteen windows: what one of them shows, the others repeat."""
    once = np.tile(np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 6]), (16, 1))
    none = np.zeros_like(once)
    assert compare(none, once, sentences=10).result.verdict == "inconclusive"
    assert compare(none, once).result.verdict == "slower", "as 160 sentences they would prove it"


def test_too_few_sentences_are_named_as_such() -> None:
    """More windows of the same two sentences would not help."""
    none = np.zeros((16, 10), int)
    result = compare(none, none + 1, sentences=2).result
    assert (result.verdict, result.reason) == ("inconclusive", "2 different sentences; a verdict needs 8")
    assert result.blocks_needed is None


def test_a_disturbed_machine_leaves_words_as_they_are() -> None:
    a, b = speaker("a", noise(0)), speaker("b", noise(0) + 2)
    doubt = Doubt(math.inf, math.inf, "a disturbed machine")
    compared = compare_variants(a, b, same_record=False, metrics=["wer", "requests_per_second"], doubt=doubt)
    words, rate = (item.result for item in compared)
    assert words.verdict == "slower" and (rate.verdict, rate.reason) == ("inconclusive", "a disturbed machine")


def test_the_total_is_of_all_words() -> None:
    errors = np.zeros((16, 10), int)
    errors[0] = 4
    summary = get_summaries(speaker("a", errors))["wer"]
    assert summary.median == pytest.approx(40 / 1600)


def test_speech_of_other_lengths_is_compared_where_the_words_are_known() -> None:
    def lasting(name: str, seconds: float, **work: float) -> Variant:
        sample = Sample(block=0, position=0, number=0, e2e_s=0.2, work={"requests": 1.0, "audio_s": seconds, **work})
        return Variant(name=name, samples=(sample,))

    assert not work_differences(lasting("a", 2.0, words=9.0), lasting("b", 1.5, words=9.0))
    (found,) = work_differences(lasting("a", 2.0), lasting("b", 1.5))
    assert found.field == "work.audio_s"


def test_the_verdict_has_the_shares() -> None:
    a, b = speaker("a", noise(0)), speaker("b", noise(0) + noise(1, 0.05), position=1)
    pair = Pair(a, b, tuple(item.result for item in compare_variants(a, b, same_record=True)))
    text = words_sentence(pair, Labels("A", "B")) or ""
    assert text.startswith("b says more words wrong than a: 15.9% against 11.1%, 1.4")
    assert text.endswith("are left out")
    verdict = comparison_verdict(None, [pair], Labels("A", "B"))
    assert verdict is not None and f"{text}." in verdict.sentences
