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
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import Literal

import msgspec

from omni_cli.metrics import ATTAINMENT, GOODPUT
from omni_cli.record import Record, Variant, num_requests
from omni_cli.results import Bounds
from omni_cli.stats.estimate import MIN_BLOCKS
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


@dataclass(frozen=True)
class RateSearch:
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


@dataclass(frozen=True)
class AttainmentSpec(ComparisonSpec):
    """`target` of the requests have to be within the SLO (0.9 is 90 %)."""

    target: float = 0.9

    def is_decided(self, record: Record) -> bool:
        return self.judged(record, 0.0).verdict != "undecided"

    def judged(self, record: Record, rate: float) -> RateTrial:
        """Return the verdict on the only variant of a record; a share of 0 of no request is undecided."""
        (variant,) = record.variants
        blocks = _by_block(variant)
        windows = tuple(sample.metrics[ATTAINMENT] for sample in variant.samples)
        sent = num_requests(variant)
        goodput = [sample.metrics[GOODPUT] for sample in variant.samples]
        trial = RateTrial(
            rate=rate,
            verdict="undecided",
            attainment=fmean(windows) if windows else None,
            goodput_per_second=fmean(goodput) if goodput else None,
            num_requests=sent,
            windows=windows,
        )
        if len(blocks) < MIN_BLOCKS:
            return trial
        level = level_at(record.sampling.looks, len(blocks), record.sampling.alpha)
        low, high = attainment_interval(blocks, sent, level)
        verdict: RateVerdict = "met" if low > self.target else "missed" if high < self.target else "undecided"
        return msgspec.structs.replace(trial, verdict=verdict, ci95=(low, high))


def attainment_interval(blocks: Sequence[float], num_requests: int, level: float) -> Bounds:
    """Return the interval of a share from its values by block; requests of a block wait for each other.

    It is Agresti and Coull's for independent requests, with the standard error of the blocks where that is larger:
    equal blocks prove no share of 1. Blocks that fail as a whole, but rarely, need more blocks than the minimum.
    """
    reach = NormalDist().inv_cdf(1 - level / 2) * (1 + 3 / len(blocks))
    total = num_requests + reach**2
    centre = (fmean(blocks) * num_requests + reach**2 / 2) / total
    half = reach * math.sqrt(max(variance(blocks) / len(blocks), centre * (1 - centre) / total))
    return max(0.0, centre - half), min(1.0, centre + half)


def requests_needed(target: float) -> int:
    """Return the number of requests that shows more than `target` if half of the misses that it allows happen."""
    share, count = (1 + target) / 2, 1
    while attainment_interval([share] * MIN_WINDOWS, count, RATE_ALPHA)[0] <= target:
        count += 1 + count // 10
    return count


def _by_block(variant: Variant) -> list[float]:
    values = defaultdict(list)
    for sample in variant.samples:
        values[sample.block].append(sample.metrics[ATTAINMENT])
    return [fmean(shares) for shares in values.values()]
