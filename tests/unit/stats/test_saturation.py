"""The highest rate that meets an SLO: which rate comes next, the verdict on one, and how often the bounds are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from omni_cli.records.record import Record, Sample, StoppingPlan, Variant
from omni_cli.stats.estimate import attainment_interval
from omni_cli.stats.saturation import (
    MAX_RATES,
    PRECISION,
    RATE_ALPHA,
    AttainmentSpec,
    RateSearch,
    RateTrial,
    RateVerdict,
)
from omni_cli.stats.sequential import plan_looks


def searched(get_verdict: Callable[[float], RateVerdict], first: float = 1.0) -> RateSearch:
    search = RateSearch(first)
    while (rate := search.next_rate()) is not None:
        search = RateSearch(first, (*search.trials, RateTrial(rate=rate, verdict=get_verdict(rate))))
    return search


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 60.0])
def test_the_limit_is_enclosed(limit: float) -> None:
    search = searched(lambda rate: "met" if rate < limit else "missed")
    low, high = search.bounds
    assert low is not None and high is not None
    assert low < limit <= high and high / low <= 1 + PRECISION and len(search.trials) < MAX_RATES


def test_undecided_rates_lie_between_the_bounds() -> None:
    search = searched(lambda rate: "met" if rate < 9 else "missed" if rate > 11 else "undecided")
    low, high = search.bounds
    assert low is not None and high is not None and 9 / 1.1 < low < 9 and 11 < high < 11 * 1.1


@pytest.mark.parametrize(
    ("verdict", "index", "rates"), [("met", 1, MAX_RATES), ("missed", 0, 5), ("undecided", 0, MAX_RATES)]
)
def test_a_search_without_an_end_is_given_up(verdict: RateVerdict, index: int, rates: int) -> None:
    search = searched(lambda _: verdict)
    assert len(search.trials) == rates and search.bounds[index] is None


def test_a_rate_that_is_met_above_one_that_is_missed_is_no_bound() -> None:
    met, above = (RateTrial(rate=rate, verdict="met") for rate in (1.0, 4.0))
    missed = RateTrial(rate=2.0, verdict="missed")
    assert RateSearch(1.0, (met, missed, above)).bounds == (1.0, 2.0)


def record(shares: list[float], requests: int = 8) -> Record:
    samples = tuple(
        Sample(
            block=block, position=0, e2e_s=1.0, requests={"start_s": (0.0,) * requests},
            metrics={"slo_attainment": share, "goodput_per_second": share * 4},
        )
        for block, share in enumerate(shares)
    )  # fmt: skip
    plan = StoppingPlan(looks=plan_looks(max(len(shares), 8)), alpha=RATE_ALPHA)
    return Record(
        created="", environment={}, workload={}, sampling=plan, variants=(Variant(name="a", samples=samples),)
    )


def test_verdicts_on_a_rate() -> None:
    spec = AttainmentSpec(target=0.9)
    assert spec.judge(record([1.0] * 7), 4.0).verdict == "undecided", "too few windows"
    assert spec.judge(record([1.0] * 12), 4.0).verdict == "undecided", "96 requests do not prove it"
    assert spec.judge(record([1.0] * 12, requests=32), 4.0).verdict == "met"
    assert spec.judge(record([0.25, 0.5] * 6, requests=32), 4.0).verdict == "missed"
    assert spec.judge(record([1.0, 0.75] * 6), 4.0).verdict == "undecided"
    trial = spec.judge(record([0.5] * 8), 4.0)
    assert (trial.attainment, trial.goodput_per_second, trial.num_requests) == (0.5, 2.0, 64)
    assert spec.judge(record([]), 4.0).attainment is None


@pytest.mark.parametrize("within_block", [0.0, 0.2])
def test_the_interval_contains_the_true_share(within_block: float) -> None:
    """Requests of a block that share their fate, a fifth of the time, are no independent ones."""
    rng, share, misses = np.random.default_rng(0), 0.9, 0
    for _ in range(400):
        own = rng.random((12, 24)) < share
        common = (rng.random(12) < share)[:, None]
        shared = rng.random((12, 24)) < within_block
        blocks = np.where(shared, common, own).mean(axis=1).tolist()
        low, high = attainment_interval(blocks, 12 * 24, 0.05)
        misses += not low <= share <= high
    assert misses / 400 <= 0.08
