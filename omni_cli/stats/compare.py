"""Two variants, metric by metric: the ratio of their medians, its interval, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from omni_cli.metrics import COUNTED, higher_is_better
from omni_cli.record import StoppingPlan, Variant, get_values, metric_names
from omni_cli.results import Comparison, Verdict
from omni_cli.stats.blocks import are_interleaved, block_logs, compare_queues, independent_units, is_counted
from omni_cli.stats.estimate import MIN_BLOCKS, TRIM, Estimate, get_centre, get_difference, of_counts
from omni_cli.stats.power import blocks_needed
from omni_cli.stats.sequential import level_at

_REVERSED: dict[Verdict, Verdict] = {"faster": "slower", "slower": "faster"}

MARGIN = 0.02
"""Practical equivalence: ratios from 1/1.02 to 1.02 count as no difference.

Two loads of the same stage differ by up to about that much for as long as they live (standard deviation 0.7 %
each, measured over 15 loads, `benchmarks/gate_calibration.md`), so a smaller difference between two variants shows
no effect of their settings."""


@dataclass(frozen=True)
class Compared:
    """A comparison with what a gate needs beyond it.

    `level` is the two-sided error of the interval at this look; `estimate` is of the log ratio, None if there are no
    ratios. `slowed` are the sides, of a and b, that something else on their machines may have slowed down.
    """

    result: Comparison
    level: float
    estimate: Estimate | None = field(default=None, repr=False, compare=False)
    slowed: tuple[bool, bool] = (False, False)

    def withheld(self, *, is_better: bool, is_worse: bool) -> str | None:
        """Return why there is no such verdict on b: what else ran on the machine speaks for it as well."""
        slowed_a, slowed_b = self.slowed
        if (slowed_a and not is_worse) or (slowed_b and not is_better):
            names = " and ".join(name for name, slowed in zip("AB", self.slowed, strict=True) if slowed)
            return f"{names} ran on a disturbed machine, and not interleaved with the other"
        return None


def compare_variants(
    a: Variant,
    b: Variant,
    *,
    same_record: bool,
    sampling: Sequence[StoppingPlan] = (),
    metrics: Sequence[str] | None = None,
    margin: float = MARGIN,
    slowed: tuple[bool, bool] = (False, False),
) -> tuple[Compared, ...]:
    """Compare two variants in all metrics that both have, or in `metrics`.

    `same_record`: the blocks of both are the same blocks. `sampling` are the plans of the records, which determine the
    level of the intervals. Metrics that are 0 throughout were not measured and are left out. `slowed` counts for sides
    that did not run interleaved.
    """
    paired = a.samples == b.samples or (same_record and are_interleaved(a, b))
    names = shared_metrics(a, b) if metrics is None else metrics
    compared = (_compare(a, b, name, paired, sampling, margin) for name in names)
    found = tuple(comparison for comparison in compared if comparison is not None)
    return found if paired or not any(slowed) else tuple(_doubted(replace(item, slowed=slowed)) for item in found)


def shared_metrics(a: Variant, b: Variant) -> tuple[str, ...]:
    """Return the metrics that both have, in the order of `a`."""
    others = set(metric_names(b))
    return tuple(name for name in metric_names(a) if name in others)


def reversed_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict on a against b, given the one on b against a."""
    return _REVERSED.get(verdict, verdict)


def get_verdict(interval: tuple[float, float], margin: float, *, higher: bool) -> Verdict:
    """Return the verdict on an interval of the log ratio.

    "Faster" and "slower" need the whole interval beyond the margin, "no difference" the whole interval within it.
    """
    edge = math.log1p(margin)
    low, high = interval
    if -edge <= low and high <= edge:
        return "no difference"
    if low > edge:
        return "faster" if higher else "slower"
    if high < -edge:
        return "slower" if higher else "faster"
    return "inconclusive"


def _compare(
    a: Variant, b: Variant, metric: str, paired: bool, sampling: Sequence[StoppingPlan], margin: float
) -> Compared | None:
    if not any(value for variant in (a, b) for _, value in get_values(variant, metric)):
        return None
    blocks_a, logs_a, error_a = block_logs(a, metric)
    blocks_b, logs_b, error_b = block_logs(b, metric)
    places = compare_queues(a, b, metric)
    by_place = places is not None and places.size > 0
    if places is not None and by_place:
        logs_a, logs_b = 0 * places, places
    elif paired:
        _, in_a, in_b = np.intersect1d(blocks_a, blocks_b, return_indices=True)
        logs_a, logs_b = logs_a[in_a], logs_b[in_b]
    blocks = min(len(logs_a), len(logs_b))
    level = min((level_at(plan.looks, blocks, plan.alpha) for plan in sampling), default=StoppingPlan().alpha)
    empty = Comparison(
        metric=metric, a=a.name, b=b.name, margin=margin, blocks=blocks, interleaved=paired,
        a_median=_median(a, metric), b_median=_median(b, metric), blocks_needed=None,
    )  # fmt: skip
    if not np.isfinite(logs_a).all() or not np.isfinite(logs_b).all() or blocks == 0:
        reason = "some values are 0" if blocks else "no block has both"
        return Compared(msgspec.structs.replace(empty, reason=reason), level)
    # The few windows in which requests failed are no outliers.
    trim = 0.0 if is_counted(a, metric) or by_place else TRIM
    estimate = _estimate(logs_a, logs_b, paired or by_place, trim)
    if metric in COUNTED:
        estimate = of_counts(estimate, math.hypot(error_a, error_b))
    judged = _judged(empty, estimate, level)
    if places is not None and not by_place and max(len(a.samples), len(b.samples)) > 1:
        reason = "requests that were all sent at once are one measurement, comparable with 10 or more others, as many"
        judged = msgspec.structs.replace(judged, reason=reason, blocks_needed=None)
    return Compared(judged, level, estimate)


def _doubted(compared: Compared) -> Compared:
    """Withhold a verdict that a disturbance of one side explains as well."""
    verdict = compared.result.verdict
    reason = compared.withheld(is_better=verdict == "faster", is_worse=verdict == "slower")
    if verdict == "inconclusive" or reason is None:
        return compared
    doubted = msgspec.structs.replace(compared.result, verdict="inconclusive", reason=reason, blocks_needed=None)
    return replace(compared, result=doubted)


def _estimate(logs_a: np.ndarray, logs_b: np.ndarray, paired: bool, trim: float) -> Estimate:
    if paired:
        units = independent_units(logs_b - logs_a)
        return get_centre(units.values, units.inflation, trim)
    a, b = independent_units(logs_a), independent_units(logs_b)
    return get_difference(a.values, b.values, (a.inflation, b.inflation), trim)


def _judged(empty: Comparison, estimate: Estimate, level: float) -> Comparison:
    blocks = empty.blocks
    assert empty.a_median is not None and empty.b_median is not None  # both have blocks
    comparison = msgspec.structs.replace(
        empty, ratio=math.exp(estimate.centre), ratio_of_medians=empty.b_median / empty.a_median
    )
    if estimate.units < MIN_BLOCKS:
        reason = f"{'1 block' if blocks == 1 else f'{blocks} blocks'}; a verdict needs {MIN_BLOCKS}"
        return msgspec.structs.replace(comparison, blocks_needed=MIN_BLOCKS - blocks, reason=reason)
    interval = estimate.interval(level)
    verdict = get_verdict(interval, empty.margin, higher=higher_is_better(empty.metric))
    needed: int | UnsetType | None = UNSET
    if verdict == "inconclusive":
        gap = abs(abs(estimate.centre) - math.log1p(empty.margin))
        needed = blocks_needed(estimate, blocks, gap, level)
    return msgspec.structs.replace(comparison, ci95=_ratios(interval), verdict=verdict, blocks_needed=needed)


def _ratios(interval: tuple[float, float]) -> tuple[float, float] | None:
    """Convert an interval of log ratios to ratios; None if the bootstrap could not bound it."""
    if not all(math.isfinite(bound) and abs(bound) < 100 for bound in interval):
        return None
    return math.exp(interval[0]), math.exp(interval[1])


def _median(variant: Variant, metric: str) -> float | None:
    values = [value for _, value in get_values(variant, metric)]
    # `numpy.median` would import NumPy's masked arrays.
    return statistics.median(values) if values else None
