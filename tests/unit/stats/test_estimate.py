"""The centre and its interval: exact symmetries, and coverage under all kinds of machine noise."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench_records import correlated

from omni_cli.stats.estimate import MIN_BLOCKS, TRIM, get_centre, get_difference

pytestmark = pytest.mark.slow


values = st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=40).map(np.array)


@given(values, st.floats(-5, 5), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_shift_and_scale(data: np.ndarray, shift: float, scale: float) -> None:
    plain, moved = get_centre(data), get_centre(shift + scale * data)
    assert moved.centre == pytest.approx(shift + scale * plain.centre, abs=1e-9)
    assert moved.standard_error == pytest.approx(scale * plain.standard_error, rel=1e-6, abs=1e-9)


@given(values, st.randoms())
@settings(max_examples=60, deadline=None)
def test_order_of_blocks_and_sign(data: np.ndarray, random) -> None:
    plain = get_centre(data)
    shuffled = data.copy()
    random.shuffle(shuffled)
    assert get_centre(shuffled).interval(0.05) == plain.interval(0.05)
    mirrored = get_centre(-data)
    assert mirrored.centre == pytest.approx(-plain.centre, abs=1e-12)
    if np.isfinite(plain.half_width(0.05)):
        assert mirrored.half_width(0.05) == pytest.approx(plain.half_width(0.05), rel=1e-6, abs=1e-12)


@given(values, values)
@settings(max_examples=60, deadline=None)
def test_a_difference_turns_its_sign_when_its_sides_are_swapped(first: np.ndarray, second: np.ndarray) -> None:
    one, other = get_difference(first, second), get_difference(second, first)
    assert other.centre == pytest.approx(-one.centre, abs=1e-12)
    assert np.array_equal(one.deviations, other.deviations)


def test_centre_is_the_trimmed_mean() -> None:
    data = np.array([3.0, 1.0, 2.0, 1000.0, 4.0, 5.0, -1000.0, 6.0, 7.0, 8.0])
    ranked = np.sort(data)
    cut = int(TRIM * len(data))
    assert cut == 2
    assert get_centre(data).centre == pytest.approx(ranked[2:8].mean())


def test_equal_values_have_no_width() -> None:
    estimate = get_centre(np.full(10, 0.25))
    assert estimate.interval(0.05) == (0.25, 0.25)
    assert estimate.tail(0.2) == 0.0
    assert estimate.tail(0.25) == 1.0


def test_one_value_has_no_interval() -> None:
    assert get_centre(np.array([1.0])).interval(0.05) == (-np.inf, np.inf)


@given(st.integers(0, 1000), st.sampled_from([0.1, 0.05, 0.01, 0.002]))
@settings(max_examples=60, deadline=None)
def test_interval_and_p_value_say_the_same(seed: int, level: float) -> None:
    estimate = get_centre(np.random.default_rng(seed).standard_normal(20))
    low, high = estimate.interval(level)
    for bound in np.linspace(-1, 1, 21):
        assert (not low <= bound <= high) == (estimate.tail(bound) <= level / 2)


def test_is_fast() -> None:
    data = np.random.default_rng(0).standard_normal(40)
    get_centre(data)
    # The best of ten, because the claim is about the cost, not about a busy machine.
    durations = []
    for _ in range(10):
        start = time.perf_counter()
        get_centre(data)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.05


def simulated(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return log times (series, runs)."""
    runs = shape[1]
    quiet = 0.02 * rng.standard_normal(shape)
    match kind:
        case "independent":
            return quiet
        case "autocorrelated":
            return np.log(correlated(rng, shape, lag1=0.75, cv=0.05))
        case "drifting":
            return quiet + np.linspace(0, 0.3, runs)
        case "bimodal":
            return quiet + 0.1 * (rng.random(shape) < 0.5)
        case "heavy-tailed":
            return 0.02 * rng.standard_t(2, shape)
        case "spikes":
            return quiet + np.where(rng.random(shape) < 0.03, rng.exponential(1, shape), 0)
    raise AssertionError(kind)


KINDS = ["independent", "autocorrelated", "drifting", "bimodal", "heavy-tailed", "spikes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [MIN_BLOCKS, 30])
def test_coverage_of_interleaved_blocks(kind: str, blocks: int) -> None:
    """ABBA blocks, b equal to a: at least 95 % of 95 % intervals contain 0, allowing for 1000 repetitions."""
    repetitions = 1000
    series = simulated(kind, np.random.default_rng(7), (repetitions, 4 * blocks)).reshape(repetitions, blocks, 4)
    ratios = (series[:, :, 1] + series[:, :, 2] - series[:, :, 0] - series[:, :, 3]) / 2
    ratios[:, 1::2] *= -1  # every other block runs B A A B
    covered = {level: 0 for level in (0.05, 0.01)}
    for row in ratios:
        estimate = get_centre(row)
        for level in covered:
            covered[level] += abs(estimate.centre) <= estimate.half_width(level)
    # Three standard errors of a proportion below the nominal coverage.
    assert covered[0.05] / repetitions >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / repetitions)
    assert covered[0.01] / repetitions >= 0.99 - 3 * np.sqrt(0.99 * 0.01 / repetitions)
    if blocks > MIN_BLOCKS:  # and not by being needlessly wide
        assert covered[0.05] / repetitions <= 0.98
