"""Verdicts of tokens, log-probabilities, codes and media against a reference whose noise is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from omni_cli.measure.verify.noise import get_noise
from omni_cli.measure.verify.run_comparison import compare_runs
from omni_cli.measure.verify.verdicts import judge_arrays, judge_tokens
from omni_cli.models.scores import EngineOutput, EngineTokens, Expected, TokenScores
from omni_cli.records.verify_record import Row
from omni_cli.requests.outputs import GenerateRequest

NUM = 40
CANDIDATES = 4
NOISE = 1e-3


def no_text(stage: str, token_ids: object) -> None:
    return None


def as_text(stage: str, token_ids: object) -> str:
    return "".join(f"<{token_id}>" for token_id in token_ids)  # type: ignore[attr-defined]


def logprobs(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(-rng.uniform(0.1, 6, (NUM, CANDIDATES)), axis=1)[:, ::-1]


def scores(values: np.ndarray, **others: object) -> TokenScores:
    num = len(values)
    known = {"top_ids": np.arange(num), "gaps": np.zeros(num), "margins": np.ones(num)}
    return TokenScores(values, **{**known, **others})  # type: ignore[arg-type]


def tokens(values: np.ndarray, codes: tuple[tuple[int, ...], ...] | None = None) -> EngineTokens:
    ids = np.arange(len(values))
    candidates = np.stack([ids + 100 * column for column in range(values.shape[1])], axis=1)
    return EngineTokens(tuple(ids.tolist()), candidates, values, codes)


def noisy(values: np.ndarray, seed: int, size: float = NOISE) -> np.ndarray:
    return values + np.random.default_rng(seed).uniform(-size, size, values.shape)


def engine(made: EngineTokens, **arrays: np.ndarray) -> EngineOutput:
    named = {f"0.{name}.0": array for name, array in arrays.items()}
    return EngineOutput(GenerateRequest("one", "hello"), {"model": made}, named, {"0.audio.0": 24000})


def judged(made: EngineTokens, wide: TokenScores) -> Row:
    ways = [[Expected({"model": wide})]]
    for seed in (1, 2):
        ways.append([Expected({"model": dataclasses.replace(wide, logprobs=noisy(wide.logprobs, seed))})])
    return judge_tokens("model", [engine(made)], ways[0], get_noise(ways), as_text)


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_as_noisy_as_the_reference_is_equal(seed: int) -> None:
    truth = logprobs(seed)
    row = judged(tokens(noisy(truth, seed + 50, 2 * NOISE)), scores(truth))
    assert row.verdict == "equal", row
    assert row.same_top == 1.0 and row.num_compared == NUM * CANDIDATES
    assert row.noise is not None and row.noise.max == pytest.approx(NOISE, rel=0.2)


@pytest.mark.parametrize("shift", [1.0, 0.02])
def test_one_log_probability_beyond_the_noise_is_different(shift: float) -> None:
    values = logprobs()
    values[17, 2] += shift
    row = judged(tokens(values), scores(logprobs()))
    assert (row.verdict, row.request, row.position) == ("different", "one", 17)
    assert row.why is not None and "log-probabilities differ" in row.why


def test_a_token_that_cannot_be_chosen_hides_no_difference() -> None:
    truth = logprobs()
    truth[:, -1] = -np.inf
    values = truth.copy()
    assert judged(tokens(values), scores(truth)).verdict == "equal"
    values[17, 2] += 1.0
    row = judged(tokens(values), scores(truth))
    assert (row.verdict, row.position) == ("different", 17)


def test_small_differences_everywhere_are_different() -> None:
    row = judged(tokens(logprobs() + 2 * NOISE), scores(logprobs()))
    assert row.verdict == "different" and row.why is not None and "on average" in row.why


@pytest.mark.parametrize(("gap", "verdict"), [(2 * NOISE, "near tie"), (0.5, "different")])
def test_another_token_is_a_near_tie_within_the_noise(gap: float, verdict: str) -> None:
    gaps, ids = np.zeros(NUM), np.arange(NUM)
    gaps[9], ids[9] = gap, 77
    row = judged(tokens(logprobs()), scores(logprobs(), gaps=gaps, top_ids=ids))
    assert (row.verdict, row.position, row.margin) == (verdict, 9, gap)
    assert (row.expected, row.got) == ("<77>", "<9>")
    assert row.expected_probability == pytest.approx(row.got_probability * np.exp(gap))
    assert row.pair is not None and row.pair.expected_text is not None and row.pair.expected_text.endswith("<8><77>")
    assert row.same_top == 1 - 1 / NUM


def test_a_difference_after_a_near_tie_is_found() -> None:
    gaps, ids = np.zeros(NUM), np.arange(NUM)
    gaps[3], ids[3], gaps[30], ids[30] = NOISE, 77, 2.0, 78
    row = judged(tokens(logprobs()), scores(logprobs(), gaps=gaps, top_ids=ids))
    assert (row.verdict, row.position) == ("different", 30)


def test_a_reference_that_ends_earlier_is_different() -> None:
    row = judged(tokens(logprobs()), scores(logprobs()[:30]))
    assert row.verdict == "different" and row.position == 30
    assert row.why == "the reference ends after 30 tokens, the engine after 40"


@pytest.mark.parametrize(("gap", "verdict"), [(NOISE, "near tie"), (0.5, "different")])
def test_codes_after_the_first_are_judged_by_their_own_noise(gap: float, verdict: str) -> None:
    codes = np.tile([1, 2, 3], (NUM, 1))
    frames = tuple((position, 1, 2, 3) for position in range(NUM))
    wide = scores(logprobs(), code_ids=codes.copy(), code_gaps=np.zeros((NUM, 3)))
    assert wide.code_ids is not None and wide.code_gaps is not None
    wide.code_ids[5, 1], wide.code_gaps[5, 1] = 9, gap
    own = dataclasses.replace(wide, code_gaps=wide.code_gaps + NOISE)
    ways = [[Expected({"model": wide})], [Expected({"model": own})]]
    row = judge_tokens("model", [engine(tokens(logprobs(), frames))], ways[0], get_noise(ways), no_text)
    assert (row.verdict, row.position, row.codebook, row.expected, row.got) == (verdict, 5, 2, "9", "2")


@pytest.mark.parametrize(("gap", "verdict"), [(1e-6, "near tie"), (1e-3, "different")])
def test_a_code_that_all_ways_prefer_as_little_is_a_near_tie(gap: float, verdict: str) -> None:
    """The ways agree on the gap, and their margins elsewhere tell what kernels do to codes."""
    codes = np.tile([1, 2, 3], (NUM, 1))
    frames = tuple((position, 1, 2, 3) for position in range(NUM))
    gaps, margins = np.zeros((NUM, 3)), np.ones((NUM, 3))
    codes[5, 1], gaps[5, 1] = 9, gap
    wide = scores(logprobs(), code_ids=codes, code_gaps=gaps, code_margins=margins)
    ways = [[Expected({"model": wide})], [Expected({"model": dataclasses.replace(wide, code_margins=margins + 1e-6)})]]
    row = judge_tokens("model", [engine(tokens(logprobs(), frames))], ways[0], get_noise(ways), no_text)
    assert (row.verdict, row.position, row.codebook) == (verdict, 5, 2)


def test_answers_without_log_probabilities_are_judged_by_their_tokens() -> None:
    row = judged(tokens(np.full((NUM, CANDIDATES), np.nan)), scores(logprobs()))
    assert row.verdict == "equal" and row.logprob_diff is None and row.num_compared == 0


def test_requests_that_the_reference_cannot_run_are_not_checked() -> None:
    row = judge_tokens("model", [engine(tokens(logprobs()))], ["too long"], get_noise([["too long"]]), no_text)
    assert (row.verdict, row.why) == ("not checked", "too long")


SOUND = np.sin(np.arange(4800) / 20).astype(np.float32)


def judged_sound(made: np.ndarray, *, is_exact: bool = False) -> Row:
    def way(gap: float) -> list[Expected | str]:
        return [Expected({}, {"0.audio.0": SOUND + np.float32(gap)}, "codec", is_exact)]

    ways = [way(0.0), way(0.0 if is_exact else 1e-4), way(0.0)]
    (row,) = judge_arrays([engine(tokens(logprobs()), audio=made)], ways, get_noise(ways))
    return row


def test_sound_may_differ_by_a_few_times_the_noise() -> None:
    assert judged_sound(SOUND + np.float32(3e-4)).verdict == "equal"
    row = judged_sound(SOUND + np.float32(1e-3))
    assert (row.verdict, row.stage) == ("different", "codec")
    assert row.pair is not None and row.pair.got is not None and row.pair.got.data[:4] == b"RIFF"


def test_an_exact_stage_may_not_differ_at_all() -> None:
    assert judged_sound(SOUND, is_exact=True).verdict == "equal"
    assert judged_sound(SOUND + np.float32(1e-7), is_exact=True).verdict == "different"


def test_other_lengths_are_different_with_both() -> None:
    row = judged_sound(SOUND[:4000])
    assert row.verdict == "different" and row.why == "4000 samples instead of 4800 samples"


def test_images_that_differ_are_shown() -> None:
    image = np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    changed = image.copy()
    changed[3, 3] ^= 255
    ways = [[Expected({}, {"0.image.0": image}, "image", is_exact=True)]] * 2
    (row,) = judge_arrays([engine(tokens(logprobs()), image=changed)], ways, get_noise(ways))
    assert row.verdict == "different" and row.psnr_db is not None and row.max_abs_diff is not None
    assert row.pair is not None and row.pair.got is not None and row.pair.got.data[:4] == b"\x89PNG"


def compared(one: EngineTokens, other: EngineTokens) -> Row:
    (row,) = compare_runs("alone = batched", ["model"], [engine(one)], [engine(other)], None, no_text)
    return row


def test_runs_that_are_the_same_are_equal() -> None:
    assert compared(tokens(logprobs()), tokens(logprobs())).verdict == "equal"


@pytest.mark.parametrize(("margin", "verdict"), [(1e-3, "near tie"), (0.5, "different")])
def test_runs_diverge_in_a_near_tie_if_the_first_hardly_prefers_its_own(margin: float, verdict: str) -> None:
    """Without a reference, the noise is how far the runs differ while their tokens are equal."""
    first = logprobs()
    one = tokens(first)
    one.candidates[20, 1], one.logprobs[20, 1] = 555, one.logprobs[20, 0] - margin
    ids = list(one.token_ids)
    ids[20] = 555
    other = dataclasses.replace(tokens(noisy(first, 3)), token_ids=tuple(ids))
    row = compared(one, other)
    assert (row.verdict, row.position, row.expected, row.got) == (verdict, 20, "20", "555")
    assert row.margin == pytest.approx(margin)


def test_runs_without_noise_may_differ_by_rounding() -> None:
    one = tokens(logprobs())
    one.candidates[20, 1], one.logprobs[20, 1] = 555, one.logprobs[20, 0] - 1e-6
    other = dataclasses.replace(one, token_ids=(*one.token_ids[:20], 555, *one.token_ids[21:]))
    assert compared(one, other).verdict == "near tie"


def test_runs_of_other_codes_are_different() -> None:
    frames = tuple((position, 1, 2) for position in range(NUM))
    changed = (*frames[:7], (7, 1, 9), *frames[8:])
    row = compared(tokens(logprobs(), frames), tokens(logprobs(), changed))
    assert (row.verdict, row.position, row.codebook, row.got) == ("different", 7, 2, "9")


def test_a_later_run_without_media_is_different() -> None:
    one, other = engine(tokens(logprobs()), audio=SOUND), engine(tokens(logprobs()))
    row = compare_runs("repeat", ["model", "codec"], [one], [other], None, no_text)[-1]
    assert (row.verdict, row.stage, row.why) == ("different", "codec", "nothing instead of 0.audio.0")
