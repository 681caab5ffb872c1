"""Arrival times are a Poisson process of exactly the requested rate, and equal for all servers."""

from __future__ import annotations

import itertools
import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from omni_cli.measure.loadtest.traffic import arrival_times

rates = st.floats(0.01, 10_000)
counts = st.integers(1, 200)


@given(rates, counts, st.integers(0, 2**32), st.integers(0, 1000))
def test_they_are_in_order_within_the_window_and_the_same_every_time(
    rate: float, count: int, seed: int, number: int
) -> None:
    times = arrival_times(rate, count, seed=seed, number=number)
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] <= count / rate
    assert times == arrival_times(rate, count, seed=seed, number=number)


def test_windows_and_seeds_have_times_of_their_own() -> None:
    drawn = {tuple(arrival_times(5, 8, seed=seed, number=number)) for seed in range(10) for number in range(10)}
    assert len(drawn) == 100


def test_gaps_are_exponential() -> None:
    """Mean 1 / rate, as much spread as mean, and no memory: a gap is independent of the next one."""
    rate = 20.0
    windows = [arrival_times(rate, 200, seed=1, number=number) for number in range(100)]
    gaps = [[later - earlier for earlier, later in itertools.pairwise(times)] for times in windows]
    every = [gap for window in gaps for gap in window]
    assert math.isclose(statistics.fmean(every), 1 / rate, rel_tol=0.02)
    assert math.isclose(statistics.stdev(every), 1 / rate, rel_tol=0.04)
    # Of exponential gaps, the share that exceeds twice the mean is exp(-2).
    assert math.isclose(sum(gap > 2 / rate for gap in every) / len(every), math.exp(-2), rel_tol=0.05)
    pairs = [pair for window in gaps for pair in itertools.pairwise(window)]
    assert abs(statistics.correlation(*zip(*pairs, strict=True))) < 0.03


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(math.inf, 3, seed=0, number=7) == [0.0, 0.0, 0.0]
