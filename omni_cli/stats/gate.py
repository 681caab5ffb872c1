"""The gate: is `b` worse than `a` by more than is allowed? Non-inferiority, with a way to say "cannot tell".

A metric passes only when its whole interval lies below the limit, and regresses only when its whole interval lies
beyond it. Several metrics may each raise a false alarm, so a regression must also survive Holm's correction over
all of them; a pass needs none, since every metric has to pass. Memory peaks are exact numbers and are compared as
such. Every block counts: nothing is measured again until it is green.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from omni_cli.config.gate_file import GateLimits
from omni_cli.errors import ExitCode
from omni_cli.stats.comparable import Difference
from omni_cli.stats.compare import Comparison
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.metrics import higher_is_better
from omni_cli.stats.power import blocks_needed, minimum_detectable

GateVerdict = Literal["pass", "regression", "inconclusive", "not comparable", "output mismatch", "failed"]

EXIT_CODES: dict[str, ExitCode] = {
    "pass": ExitCode.OK,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "not comparable": ExitCode.NOT_COMPARABLE,
    "output mismatch": ExitCode.OUTPUT_MISMATCH,
    "failed": ExitCode.RUN_FAILED,
}
# What a whole gate is when its parts disagree: the first of these that any of them is.
_SEVERITY: tuple[GateVerdict, ...] = (
    "failed", "not comparable", "output mismatch", "regression", "inconclusive", "pass",
)  # fmt: skip


@dataclass(frozen=True)
class MemoryPeak:
    """A peak of both variants, in bytes; None where it was not measured."""

    metric: str
    a: str
    b: str
    a_bytes: int | None
    b_bytes: int | None


@dataclass(frozen=True)
class Outputs:
    """Whether the outputs of `b` are those of `a`; None where that was not recorded."""

    a: str
    b: str
    identical: bool | None
    max_abs_diff: float | None = None


@dataclass(frozen=True)
class GateMetric:
    """One limit. `change` and `interval` say how much worse b is (0.05 is 5 %; below 0 it is better).

    `detectable` is the smallest regression that this many blocks show in 80 % of the cases.
    """

    metric: str
    a: str
    b: str
    verdict: GateVerdict
    limit: float
    a_value: float | None = None
    b_value: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    detectable: float | None = None
    blocks_needed: int | None = None
    place: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Gate:
    verdict: GateVerdict
    limits: GateLimits
    metrics: tuple[GateMetric, ...] = ()
    mismatches: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.verdict]

    @property
    def blocks_needed(self) -> int | None:
        """About how many more blocks would decide every metric that is open; None where none is or none would."""
        return max((metric.blocks_needed for metric in self.metrics if metric.blocks_needed), default=None)


def judge(
    limits: GateLimits,
    comparisons: Sequence[Comparison],
    memory: Sequence[MemoryPeak],
    outputs: Sequence[Outputs],
    *,
    mismatches: Sequence[Difference] = (),
    failures: Sequence[str] = (),
) -> Gate:
    """Judge all limits at once.

    `mismatches` make the verdict "not comparable" and `failures` (sentences on variants that broke off) "failed";
    the metrics are then left out, because they would be taken for verdicts.
    """
    if failures:
        return Gate("failed", limits, mismatches=tuple(mismatches), reasons=tuple(failures))
    if mismatches:
        return Gate("not comparable", limits, mismatches=tuple(mismatches))
    gated = [item for item in comparisons if item.metric in limits.metrics]
    timed = [_judge_metric(item, limits.metrics[item.metric], limits) for item in gated]
    exact = [
        _judge_memory(peak, limits.metrics[peak.metric], limits) for peak in memory if peak.metric in limits.metrics
    ]
    judged = (*_holm(timed, gated), *exact)
    judged += tuple(_unmeasured(limits, {item.metric for item in judged}))
    findings = [found for item in outputs if (found := _judge_outputs(item, limits.max_abs_diff))]
    verdicts = {item.verdict for item in judged} | {verdict for verdict, _ in findings}
    verdict = next(name for name in _SEVERITY if name in verdicts or name == "pass")
    return Gate(verdict, limits, judged, reasons=tuple(reason for _, reason in findings))


def _judge_metric(item: Comparison, limit: float, limits: GateLimits) -> GateMetric:
    judged = GateMetric(
        item.metric, item.a, item.b, "inconclusive", limit,
        a_value=item.a_median, b_value=item.b_median, place=limits.places.get(item.metric),
        blocks_needed=item.blocks_needed, reason=item.reason,
    )  # fmt: skip
    estimate = item.estimate
    if estimate is None or item.ratio is None:
        return judged
    sign = -1 if higher_is_better(item.metric) else 1
    judged = replace(judged, change=math.expm1(sign * estimate.centre))
    if estimate.units < MIN_BLOCKS:
        return judged
    low, high = sorted(sign * bound for bound in estimate.interval(item.level))
    edge = math.log1p(limit)
    detectable = minimum_detectable(estimate, item.blocks, item.blocks, item.level)
    judged = replace(
        judged,
        interval=(math.expm1(low), math.expm1(high)) if math.isfinite(high) and high < 100 else None,
        p_value=estimate.tail(sign * edge) if sign * estimate.centre > edge else 1.0,
        detectable=detectable if math.isfinite(detectable) else None,
        blocks_needed=None,
    )
    if high < edge:
        return replace(judged, verdict="pass")
    if low > edge:
        return replace(judged, verdict="regression")
    gap = abs(sign * estimate.centre - edge)
    return replace(judged, blocks_needed=blocks_needed(estimate, item.blocks, gap, item.level))


def _holm(metrics: Sequence[GateMetric], comparisons: Sequence[Comparison]) -> tuple[GateMetric, ...]:
    """Regressions that do not hold against all the limits that are judged at once become inconclusive."""
    ranked = sorted(range(len(metrics)), key=lambda index: _p_value(metrics[index]))
    kept = list(metrics)
    holds = True
    for rank, index in enumerate(ranked):
        metric, item = metrics[index], comparisons[index]
        level = item.level / (len(metrics) - rank)
        holds = holds and _p_value(metric) <= level / 2
        if metric.verdict != "regression" or holds or item.estimate is None:
            continue
        reason = (
            f"beyond the limit by itself, but not as one of {len(metrics)} gated metrics: "
            f"p = {_p_value(metric):.2g}, and {level / 2:.2g} is needed"
        )
        gap = abs(abs(item.estimate.centre) - math.log1p(metric.limit))
        needed = blocks_needed(item.estimate, item.blocks, gap, level)
        kept[index] = replace(metric, verdict="inconclusive", reason=reason, blocks_needed=needed)
    return tuple(kept)


def _p_value(metric: GateMetric) -> float:
    return 1.0 if metric.p_value is None else metric.p_value


def _judge_memory(peak: MemoryPeak, limit: float, limits: GateLimits) -> GateMetric:
    judged = GateMetric(
        peak.metric, peak.a, peak.b, "inconclusive", limit,
        a_value=peak.a_bytes, b_value=peak.b_bytes, place=limits.places.get(peak.metric),
    )  # fmt: skip
    if not peak.a_bytes or not peak.b_bytes:
        reason = "not measured on both sides; without a device there is only `peak_host_rss_bytes`"
        return replace(judged, reason=reason)
    change = peak.b_bytes / peak.a_bytes - 1
    # In whole bytes: 2 % of a peak must not fail on the last bit of a division.
    allowed = math.floor(peak.a_bytes * (1 + limit))
    verdict: Any = "pass" if peak.b_bytes <= allowed else "regression"
    return replace(judged, verdict=verdict, change=change, interval=(change, change))


def _judge_outputs(item: Outputs, max_abs_diff: float | None) -> tuple[GateVerdict, str] | None:
    """What is wrong with the outputs of a pair, or None."""
    if max_abs_diff is None or item.identical:
        return None
    pair = f"outputs of `{item.b}` and `{item.a}`"
    if item.identical is None:
        return "inconclusive", f"{pair} have to agree, but were not recorded"
    if item.max_abs_diff is None:
        unknown = "" if max_abs_diff == 0 else ", and by how much was not recorded"
        return "output mismatch", f"{pair} are not identical{unknown}"
    if max_abs_diff > 0 and item.max_abs_diff <= max_abs_diff:
        return None
    return "output mismatch", f"{pair} differ by up to {item.max_abs_diff:.3g}; allowed is {max_abs_diff:g}"


def _unmeasured(limits: GateLimits, judged: set[str]) -> list[GateMetric]:
    """A limit on what nobody measured is not met."""
    return [
        GateMetric(
            name, "", "", "inconclusive", limit, place=limits.places.get(name), reason="not measured on both sides"
        )
        for name, limit in limits.metrics.items()
        if name not in judged
    ]
