"""Comparing two variants: symmetries, verdicts, and cases without one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench_records import ABBA, correlated, pair, record, variant

from omni_cli.records.record import Sample, StoppingPlan, Variant, load_record
from omni_cli.records.record_file import save_record
from omni_cli.records.results import Comparison
from omni_cli.stats.compare import MARGIN, compare_variants, get_verdict
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.sequential import plan_looks
from omni_cli.stats.verdicts import ComparisonSpec

MIRROR = {"faster": "slower", "slower": "faster"}

noisy_pairs = st.builds(
    pair,
    blocks=st.integers(2, 30),
    slowdown=st.sampled_from([0.8, 0.98, 1.0, 1.005, 1.03, 1.5]),
    seed=st.integers(0, 10_000),
    cv=st.sampled_from([0.0, 0.001, 0.02, 0.1]),
)


def e2e(a: Variant, b: Variant, *, same_record: bool = True, **options: Any) -> Comparison:
    (found,) = compare_variants(a, b, same_record=same_record, metrics=["e2e_s"], **options)
    return found.result


def with_times(source: Variant, change) -> Variant:
    """Return the variant with every sample's time changed by a function of the sample."""
    return msgspec.structs.replace(
        source, samples=tuple(msgspec.structs.replace(s, e2e_s=change(s)) for s in source.samples)
    )


def halves(seed: int, bias: float, first: int, second: int) -> tuple[Comparison, Comparison]:
    """Compare equal variants with a bias that changes its sign, with and without a plan that reports it."""
    noise = np.random.default_rng(seed).standard_normal(first + second)
    times = np.exp(0.01 * noise + np.repeat([-bias, bias], [first, second]))
    a, b = (
        Variant(name=name, samples=tuple(Sample(block=i, position=p, e2e_s=float(t)) for i, t in enumerate(column)))
        for p, (name, column) in enumerate((("a", np.ones(first + second)), ("b", times)))
    )
    return e2e(a, b, sampling=[StoppingPlan(reversed_from=first)]), e2e(a, b, sampling=[StoppingPlan()])


@pytest.mark.parametrize(("first", "second"), [(8, 8), (9, 8), (24, 8), (8, 30)])
def test_a_bias_of_the_order_of_loading_cancels_and_widens_no_interval(first: int, second: int) -> None:
    pairs = [[halves(seed, bias, first, second) for bias in (0.0, 0.02)] for seed in range(60)]
    for (plain, _), (biased, blind) in pairs:
        assert biased.ratio == pytest.approx(plain.ratio, rel=1e-9) and biased.ci95 == pytest.approx(plain.ci95)
        if abs(first - second) < 2:
            assert blind.ci95[1] - blind.ci95[0] > plain.ci95[1] - plain.ci95[0]
    covered = sum(plain.ci95[0] <= 1 <= plain.ci95[1] for (plain, _), _ in pairs)
    assert covered >= 54, "95 % of 60, less twice what chance takes"


@pytest.mark.parametrize("seed", range(5))
def test_halves_that_differ_by_more_than_any_order_adds_widen_the_interval(seed: int) -> None:
    found, blind = halves(seed, 0.25, 8, 8)
    assert found.verdict == blind.verdict == "inconclusive"
    assert found.ci95 is None or found.ci95[1] - found.ci95[0] > 0.4


def test_a_half_without_blocks_changes_nothing() -> None:
    for found, plain in (halves(0, 0.01, 16, 0), halves(0, 0.01, 0, 16)):
        assert found == plain


@pytest.mark.slow
@given(noisy_pairs, st.sampled_from([1e-6, 0.5, 3.0, 1e4]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_units_do_not_matter(both: tuple[Variant, Variant], scale: float, same_record: bool) -> None:
    plain = e2e(*both, same_record=same_record)
    scaled = e2e(*(with_times(v, lambda s: s.e2e_s * scale) for v in both), same_record=same_record)
    assert scaled.ratio == pytest.approx(plain.ratio, rel=1e-9)
    assert scaled.verdict == plain.verdict
    if plain.ci95 is not None:
        assert scaled.ci95 == pytest.approx(plain.ci95, rel=1e-6)


@pytest.mark.slow
@given(noisy_pairs, st.randoms())
@settings(max_examples=60, deadline=None)
def test_order_of_samples_in_the_record_and_in_a_block_does_not_matter(both, random) -> None:
    a, b = both
    plain = e2e(a, b)
    shuffled = list(b.samples)
    random.shuffle(shuffled)
    assert e2e(a, msgspec.structs.replace(b, samples=tuple(shuffled))) == plain
    # Within each block the two times of b change places.
    turned: dict[int, list[Sample]] = {}
    for sample in b.samples:
        turned.setdefault(sample.block, []).append(sample)
    swapped = tuple(
        msgspec.structs.replace(one, e2e_s=other.e2e_s)
        for block in turned.values()
        for one, other in zip(block, block[::-1], strict=True)
    )
    assert e2e(a, msgspec.structs.replace(b, samples=swapped)) == plain


@given(noisy_pairs, st.booleans())
@settings(max_examples=60, deadline=None)
def test_swapping_a_and_b_inverts_the_ratio_and_mirrors_the_verdict(both, same_record: bool) -> None:
    a, b = both
    forth, back = e2e(a, b, same_record=same_record), e2e(b, a, same_record=same_record)
    assert back.ratio == pytest.approx(1 / forth.ratio, rel=1e-9)
    assert back.verdict == MIRROR.get(forth.verdict, forth.verdict)
    assert back.blocks_needed == forth.blocks_needed
    if forth.ci95 is not None:
        assert back.ci95 == pytest.approx((1 / forth.ci95[1], 1 / forth.ci95[0]), rel=1e-6)


@given(noisy_pairs, st.booleans())
@settings(max_examples=40, deadline=None)
def test_identical_data_show_no_difference(both, same_record: bool) -> None:
    a, _ = both
    found = e2e(a, msgspec.structs.replace(a, name="copy"), same_record=same_record)
    assert found.ratio == 1.0
    assert found.verdict == ("no difference" if found.blocks >= MIN_BLOCKS else "inconclusive")


@given(st.floats(-0.2, 0.2), st.floats(0, 0.1), st.booleans())
def test_verdicts_are_zones(centre: float, half: float, higher: bool) -> None:
    verdict = get_verdict((centre - half, centre + half), MARGIN, higher=higher)
    edge = math.log1p(MARGIN)
    expected = "inconclusive"
    if abs(centre) + half <= edge:
        expected = "no difference"
    elif abs(centre) - half > edge:
        expected = "faster" if (centre > 0) == higher else "slower"
    assert verdict == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slowdown", "verdict"), [(1.0, "no difference"), (1.05, "slower"), (0.95, "faster"), (1.0001, "no difference")]
)
def test_verdicts_on_a_noisy_machine(slowdown: float, verdict: str) -> None:
    found = e2e(*pair(200, slowdown, cv=0.05, lag1=0.75))
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(slowdown, rel=0.01)
    assert found.interleaved


def test_drift_that_both_share_cancels() -> None:
    a, b = pair(40, 1.03, cv=0.002)
    found = e2e(*(with_times(v, lambda s: s.e2e_s * 1.02 ** (4 * s.block + s.position)) for v in (a, b)))
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(1.03, abs=0.003)


def test_a_fifth_of_disturbed_blocks_changes_little() -> None:
    a, b = pair(40, 1.05, cv=0.005)
    disturbed = with_times(b, lambda s: s.e2e_s * (5 if s.block % 6 == 0 else 1))
    assert e2e(a, disturbed).ratio == pytest.approx(1.05, abs=0.01)
    assert e2e(a, disturbed).verdict == "slower"


def test_no_verdict_from_fewer_blocks_than_the_minimum() -> None:
    few = e2e(*pair(MIN_BLOCKS - 1, 2.0, cv=0.001))
    assert few.verdict == "inconclusive"
    assert few.reason == f"{MIN_BLOCKS - 1} blocks; a verdict needs {MIN_BLOCKS}"
    assert few.blocks_needed == 1
    assert e2e(*pair(MIN_BLOCKS, 2.0, cv=0.001)).verdict == "slower"


def test_blocks_needed_would_decide() -> None:
    """Twice the requested blocks, to allow for chance, bring a verdict."""
    found = e2e(*pair(12, 1.03, seed=1))
    assert found.verdict == "inconclusive"
    assert isinstance(found.blocks_needed, int)
    assert e2e(*pair(12 + 2 * found.blocks_needed, 1.03, seed=1)).verdict == "slower"


def test_two_records_are_not_paired_and_their_drift_widens_the_interval() -> None:
    rng = np.random.default_rng(0)
    times = correlated(rng, (2, 400), lag1=0.95, cv=0.05).reshape(2, 200, 2)
    apart = e2e(variant("x", times[0]), variant("x", times[1]), same_record=False)
    assert not apart.interleaved
    shuffled = [rng.permutation(side.reshape(-1)).reshape(200, 2) for side in times]
    independent = e2e(variant("x", shuffled[0]), variant("x", shuffled[1]), same_record=False)
    assert np.log(apart.ci95[1] / apart.ci95[0]) > 2 * np.log(independent.ci95[1] / independent.ci95[0])


@pytest.mark.slow
def test_coverage_of_two_records_of_correlated_runs() -> None:
    rng = np.random.default_rng(1)
    repetitions, inside = 500, 0
    for _ in range(repetitions):
        times = correlated(rng, (2, 400), lag1=0.75, cv=0.05).reshape(2, 100, 4)
        sides = [variant("x", side, slots=(0, 1, 2, 3)) for side in times]
        found = e2e(*sides, same_record=False)
        inside += found.ci95[0] <= 1 <= found.ci95[1]
    # A little below 95 %: how long runs stay alike is itself estimated (see `independent_units`).
    assert inside / repetitions >= 0.9


def test_variants_that_ran_one_after_the_other_are_not_paired() -> None:
    a, b = pair(20)
    sequential = msgspec.structs.replace(
        b, samples=tuple(msgspec.structs.replace(s, position=s.position - 1) for s in b.samples)
    )
    assert {s.position for s in sequential.samples} == {0, 1}
    assert not e2e(a, sequential).interleaved


def test_higher_is_better_for_rates() -> None:
    a, b = pair(40, 0.9, cv=0.001)
    rate = {"images_per_second": 1.0}
    times = [np.array([s.e2e_s for s in v.samples]).reshape(-1, 2) for v in (a, b)]
    sides = [variant(n, t, slots=s, metrics=rate) for n, t, s in zip("ab", times, ABBA, strict=True)]
    found = compare_variants(*sides, same_record=True)
    assert [(c.result.metric, c.result.verdict) for c in found] == [
        ("e2e_s", "faster"),
        ("images_per_second", "slower"),
    ]


def test_metrics_that_are_zero_or_missing() -> None:
    a, b = pair(20)
    zero = {"never_s": 0.0}
    times = [np.array([s.e2e_s for s in v.samples]).reshape(-1, 2) for v in (a, b)]
    sides = [variant(n, t, slots=s, metrics=zero) for n, t, s in zip("ab", times, ABBA, strict=True)]
    assert [c.result.metric for c in compare_variants(*sides, same_record=True)] == ["e2e_s"]
    half = msgspec.structs.replace(
        a,
        samples=tuple(msgspec.structs.replace(s, metrics={"ttft_s": 0.0} if s.block else s.metrics) for s in a.samples),
    )
    _, ttft = compare_variants(half, b, same_record=True)
    assert (ttft.result.verdict, ttft.result.ratio, ttft.result.ci95, ttft.result.reason) == (
        "inconclusive",
        None,
        None,
        "some values are 0",
    )
    lonely = Variant(name="b", samples=(Sample(block=99, position=0, e2e_s=1.0),))
    (found,) = compare_variants(a, lonely, same_record=False)
    assert found.result.verdict == "inconclusive"


def test_a_planned_run_has_wider_intervals_at_its_early_looks() -> None:
    looks = plan_looks(90)
    both = pair(looks[2], 1.02, seed=3)
    plan = [StoppingPlan(looks=looks)]
    (planned,), (plain,) = (
        compare_variants(*both, same_record=True, metrics=["e2e_s"], sampling=sampling) for sampling in (plan, [])
    )
    assert planned.level < plain.level == StoppingPlan().alpha
    wide, narrow = planned.result.ci95, plain.result.ci95
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_an_interval_that_is_too_wide_is_none_and_its_record_can_be_read(tmp_path: Path) -> None:
    """A server that was cold in its first windows: few blocks, of which each is like the one before."""
    a = variant("a", np.full((8, 2), 0.1), slots=(0, 3))
    intervals = {}
    for steepness in (2.0, 22.0):
        b = variant("b", 0.1 * np.exp(np.linspace(steepness, 0, 8)[:, None] * [1, 1]), slots=(1, 2))
        report = ComparisonSpec().report(record(a, b))
        save_record(report.complete_record(), tmp_path / "r.json")
        intervals[steepness] = load_record(tmp_path / "r.json").comparisons[0].ci95
    assert intervals[2.0] is not None and intervals[22.0] is None
