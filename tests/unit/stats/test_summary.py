"""One variant alone: percentiles only with enough samples, and an interval that contains the median."""

from __future__ import annotations

import numpy as np
import pytest
from support.bench_records import correlated, variant
from support.report_records import server_record

from omni_cli.records.metrics import samples_for, summarise_values
from omni_cli.records.record import Variant
from omni_cli.stats.blocks import request_values, summarise
from omni_cli.stats.estimate import MIN_BLOCKS


def test_samples_needed_for_a_percentile() -> None:
    assert (samples_for(90), samples_for(99)) == (44, 459)


@pytest.mark.parametrize("blocks", [1, MIN_BLOCKS - 1, MIN_BLOCKS, 21, 22, 230])
def test_only_supported_percentiles(blocks: int) -> None:
    times = np.arange(1.0, 2 * blocks + 1).reshape(blocks, 2)
    rng = np.random.default_rng(0)
    found = summarise(variant("x", rng.permutation(times.ravel()).reshape(blocks, 2)), "e2e_s")
    assert (found.n, found.minimum, found.maximum) == (2 * blocks, 1.0, 2.0 * blocks)
    assert found.median == blocks + 0.5
    assert (found.p90 is not None) == (2 * blocks >= 44)
    assert (found.p99 is not None) == (2 * blocks >= 459)
    assert found.ci95 is None or found.ci95[0] <= found.median <= found.ci95[1]
    assert (found.ci95 is None) == (blocks < MIN_BLOCKS)


def test_a_window_and_a_summary_have_the_same_percentiles() -> None:
    times = np.random.default_rng(1).lognormal(size=(250, 2))
    found = summarise(variant("x", times), "e2e_s")
    window = summarise_values({"e2e_s": times.ravel().tolist()}, tails=("e2e_s",))
    assert (found.p90, found.p99) == (window["e2e_p90_s"], window["e2e_p99_s"])


def test_the_extremes_of_windows_are_those_of_their_requests() -> None:
    (windows,) = server_record().variants
    found, times = summarise(windows, "e2e_s"), request_values(windows, "e2e_s")
    assert (found.minimum, found.maximum, found.requests) == (min(times), max(times), len(times))
    assert found.minimum < found.median < found.p90 < found.p99 < found.maximum


def test_nothing_measured() -> None:
    assert summarise(Variant(name="x"), "e2e_s") is None
    assert summarise(variant("x", np.ones((3, 2))), "ttft_s") is None


def test_a_constant_has_no_width() -> None:
    assert summarise(variant("x", np.full((20, 2), 0.25)), "e2e_s").ci95 == (0.25, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "lag1"), [(10, 0.0), (40, 0.0), (100, 0.75)])
def test_coverage_of_the_median(blocks: int, lag1: float) -> None:
    rng = np.random.default_rng(2)
    repetitions, inside = 400, 0
    for _ in range(repetitions):
        times = correlated(rng, (blocks * 2,), lag1=lag1, cv=0.05).reshape(blocks, 2)
        interval = summarise(variant("x", times), "e2e_s").ci95
        inside += interval is None or interval[0] <= 1 <= interval[1]
    assert inside / repetitions >= (0.92 if lag1 == 0 else 0.88)
