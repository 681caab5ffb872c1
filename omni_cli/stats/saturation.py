"""The highest rate at which a server meets its SLO: rates to try, and the verdict on each.

A rate is met if the whole interval of its attainment, the share of requests within the SLO, lies above the target, and
missed if all of it lies below. Rates double until one is missed (or halve until one is met), then the gap between the
highest met and the lowest missed one is halved on a logarithmic scale, until it is below `PRECISION`. A rate that
stays undecided is close to the limit: then the gaps to either side of it are halved.

The error is shared equally by `MAX_RATES` rates, and that of each is spent over its looks, as in `sequential`. So the
highest met and the lowest missed rate enclose the true one with a probability of 95 %, if the attainment falls with
the rate.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import msgspec

from omni_cli.records.metrics import ATTAINMENT, GOODPUT
from omni_cli.records.record import Record, num_requests, whole_windows
from omni_cli.records.results import Bounds
from omni_cli.stats.blocks import get_total
from omni_cli.stats.estimate import MIN_BLOCKS, attainment_interval
from omni_cli.stats.sequential import ALPHA, level_at
from omni_cli.stats.verdicts import ComparisonSpec

PRECISION = 0.1
MAX_RATES = 16
MIN_WINDOWS = 12
LOWEST = 16
"""No rate below this part of the first one is tried: windows of slow rates take long."""

RATE_ALPHA = ALPHA / MAX_RATES

RateVerdict = Literal["met", "missed", "undecided"]


class RateTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One rate, in requests per second. `windows` has the attainment of each window."""

    rate: float
    verdict: RateVerdict
    attainment: float | None = None
    ci95: Bounds | None = None
    goodput_per_second: float | None = None
    num_requests: int = 0
    windows: tuple[float, ...] = ()
    reason: str | None = None


class RateSearch(msgspec.Struct, frozen=True):
    """The rates so far; `first` is the first one."""

    first: float
    trials: tuple[RateTrial, ...] = ()

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The highest rate that was met, below all that were missed, and the lowest one that was missed."""
        high = min((trial.rate for trial in self.trials if trial.verdict == "missed"), default=math.inf)
        low = max((t.rate for t in self.trials if t.verdict == "met" and t.rate < high), default=None)
        return low, None if math.isinf(high) else high

    def next_rate(self) -> float | None:
        """Return the next rate; None at the end of the search."""
        if not self.trials:
            return self.first
        if len(self.trials) >= MAX_RATES:
            return None
        low, high = self.bounds
        tried = [trial.rate for trial in self.trials]
        if high is None:
            return 2 * max(tried)
        if low is None:
            return min(tried) / 2 if min(tried) * LOWEST > self.first else None
        inside = sorted(rate for rate in tried if low <= rate <= high)
        gap, start = max((after / before, before) for before, after in itertools.pairwise(inside))
        return None if gap <= 1 + PRECISION else start * math.sqrt(gap)


class AttainmentSpec(ComparisonSpec, frozen=True):
    """`target` of the requests have to be within the SLO (0.9 is 90 %)."""

    target: float = 0.9

    def is_decided(self, record: Record) -> bool:
        return self.judge(record, 0.0).verdict != "undecided"

    def judge(self, record: Record, rate: float) -> RateTrial:
        """Return the verdict on the only variant of a record; a share of 0 of no request is undecided."""
        (variant,) = map(whole_windows, record.variants)
        if not variant.samples:
            return RateTrial(rate=rate, verdict="undecided")
        share = get_total(variant, ATTAINMENT)
        trial = RateTrial(
            rate=rate,
            verdict="undecided",
            attainment=share.rate,
            goodput_per_second=get_total(variant, GOODPUT).rate,
            num_requests=num_requests(variant),
            windows=tuple(sample.metrics[ATTAINMENT] for sample in variant.samples),
        )
        if len(share.blocks) < MIN_BLOCKS:
            return trial
        level = level_at(record.sampling.looks, len(share.blocks), record.sampling.alpha)
        low, high = attainment_interval(share.values, share.sent, level)
        verdict: RateVerdict = "met" if low > self.target else "missed" if high < self.target else "undecided"
        return msgspec.structs.replace(trial, verdict=verdict, ci95=(max(low, 0.0), min(high, 1.0)))


def requests_needed(target: float) -> int:
    """Return the number of requests that shows more than `target` if half of the misses that it allows happen."""
    share, count = (1 + target) / 2, 1
    while attainment_interval([share] * MIN_WINDOWS, count, RATE_ALPHA)[0] <= target:
        count += 1 + count // 10
    return count
