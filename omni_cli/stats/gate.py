"""The gate: is `b` worse than `a` by more than is allowed? A non-inferiority test that may be inconclusive.

A metric passes only if its whole interval lies below the limit, and regresses only if its whole interval lies beyond
it. Several metrics may each raise a false alarm, so a regression must also survive Holm's correction over all of
them; a pass needs no correction, since every metric has to pass. Memory peaks are exact and compared as such. Every
block counts: nothing is measured again until it passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET

from omni_cli.config.gate_limits import GateLimits, QualityLimit
from omni_cli.core.errors import UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.records.metrics import (
    ALLOCATED,
    ENERGY,
    ENERGY_PER,
    GATED_MEMORY,
    HOST_RSS,
    METRICS,
    PERCENTILES,
    higher_is_better,
    is_energy,
    percentile_name,
)  # fmt: skip
from omni_cli.records.record import Record
from omni_cli.records.results import (
    Comparison,
    Difference,
    GateMetric,
    GateQuality,
    GateResult,
    GateVerdict,
    MeasureMean,
    MemoryPeak,
    Outputs,
)
from omni_cli.stats.blocks import metric_names
from omni_cli.stats.compare import Compared
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.sequential import blocks_needed, minimum_detectable

_LEVEL = 0.05
# The verdict of a gate is the first of these that any of its parts has.
_SEVERITY: tuple[GateVerdict, ...] = (
    "failed", "not comparable", "output mismatch", "regression", "inconclusive", "pass",
)  # fmt: skip


def judge(
    limits: GateLimits,
    compared: Sequence[Compared],
    memory: Sequence[MemoryPeak],
    outputs: Mapping[tuple[str, str], Outputs],
    *,
    mismatches: Sequence[Difference] = (),
    failures: Sequence[str] = (),
    missing: Sequence[str] = (),
) -> GateResult:
    """Judge all limits at once; `outputs` are by the names of a and b.

    `mismatches` make the verdict "not comparable" and `failures` (sentences on variants that failed) "failed"; metrics
    are then left out, because they could be mistaken for verdicts. `missing` are sentences on what cannot be judged.
    """
    if failures:
        return _gate("failed", limits, mismatches=mismatches, reasons=failures)
    if mismatches:
        return _gate("not comparable", limits, mismatches=mismatches)
    has_device = any(peak.metric == ALLOCATED for peak in memory)
    limits = limits.with_memory(ALLOCATED if has_device else HOST_RSS)
    gated = [item for item in compared if item.result.metric in limits.metrics]
    timed = [_judge_time(item, limits) for item in gated]
    sizes = [_judge_memory(peak, limits) for peak in memory if peak.metric in limits.metrics]
    judged = (*_holm(timed, gated), *sizes)
    judged += tuple(_find_unmeasured(limits, judged, outputs))
    outcomes = [outcome for names, item in outputs.items() if (outcome := _judge_outputs(*names, item, limits))]
    quality = [pair for names, item in outputs.items() for pair in _judge_quality(*names, item, limits)]
    outcomes += [(item.verdict, reason) for item, reason in quality if reason]
    outcomes += [("inconclusive", reason) for reason in missing]
    verdicts = {item.verdict for item in judged} | {verdict for verdict, _ in outcomes}
    verdict = next(name for name in _SEVERITY if name in verdicts or name == "pass")
    gate = _gate(verdict, limits, judged, reasons=[reason for _, reason in outcomes])
    return msgspec.structs.replace(gate, quality=tuple(item for item, _ in quality) or UNSET)


def check_limits(limits: GateLimits | None, records: Sequence[Record]) -> None:
    """Raise `UsageError` for a limit on something that no variant of the records has, unless one failed: it may lack
    everything."""
    variants = [variant for record in records for variant in record.variants]
    if limits is not None and not any(variant.failure for variant in variants):
        check_metrics(limits.metrics, [name for variant in variants for name in metric_names(variant)], limits.places)


def check_names(names: Iterable[str]) -> None:
    """Raise `UsageError` for a metric that no measurement of ours has, before there is one."""
    shares = {percentile_name(name, share) for name in METRICS if name.endswith("_s") for share in PERCENTILES}
    for name in names:
        stage, dot, metric = name.rpartition(".")
        if metric not in shares:
            check_metrics([name], [f"{stage}{dot}{known}" for known in METRICS])


def check_metrics(names: Iterable[str], known: Iterable[str], places: Mapping[str, str] | None = None) -> None:
    """Raise `UsageError` for a metric that is neither `known` nor a size that can be gated, nor energy, which
    appears after seconds and not everywhere; `places` are where names are written."""
    choices = dict.fromkeys([*known, *GATED_MEMORY])
    for name in names:
        if name not in choices and not is_energy(name):
            place = f"{places[name]}: " if places and name in places else ""
            hint = suggest(name, choices) or f"there are {', '.join(choices)}"
            raise UsageError(f"{place}unknown metric `{visible(name, 80)}`", hint=hint)


def _gate(
    verdict: GateVerdict,
    limits: GateLimits,
    metrics: tuple[GateMetric, ...] = (),
    *,
    mismatches: Sequence[Difference] = (),
    reasons: Sequence[str] = (),
) -> GateResult:
    return GateResult(
        verdict=verdict,
        max_regression=limits.max_regression,
        max_abs_diff=limits.max_abs_diff,
        blocks_needed=max((metric.blocks_needed for metric in metrics if metric.blocks_needed), default=None),
        seconds_needed=max((metric.seconds_needed for metric in metrics if metric.seconds_needed), default=UNSET),
        metrics=metrics,
        mismatches=tuple(mismatches),
        reasons=tuple(reasons),
    )


def _make_undecided(item: Comparison | MemoryPeak, limits: GateLimits) -> GateMetric:
    return GateMetric(
        metric=item.metric, a=item.a, b=item.b, verdict="inconclusive", limit=limits.metrics[item.metric],
        change=None, ci95=None, place=limits.places.get(item.metric),
    )  # fmt: skip


def _judge_time(compared: Compared, limits: GateLimits) -> GateMetric:
    item, estimate, level = compared.result, compared.estimate, compared.level
    judged = msgspec.structs.replace(
        _make_undecided(item, limits), blocks_needed=item.blocks_needed or None,
        seconds_needed=item.seconds_needed or None, reason=item.reason or None,
    )  # fmt: skip
    if estimate is None or item.ratio is None:
        return judged
    sign = -1 if higher_is_better(item.metric) else 1
    judged = msgspec.structs.replace(judged, change=math.expm1(sign * estimate.centre))
    if estimate.units < MIN_BLOCKS:
        return judged
    low, high = sorted(sign * bound for bound in estimate.interval(level))
    edge = math.log1p(judged.limit)
    detectable = minimum_detectable(estimate, item.blocks, item.blocks, level)
    judged = msgspec.structs.replace(
        judged,
        ci95=(math.expm1(low), math.expm1(high)) if math.isfinite(high) and high < 100 else None,
        p_value=estimate.tail(sign * edge) if sign * estimate.centre > edge else 1.0,
        detectable=detectable if math.isfinite(detectable) else None,
        blocks_needed=None,
        seconds_needed=None,
    )
    if high < edge or low > edge:
        # Within the limit, only a slower A would speak against it: B would be even faster undisturbed.
        if compared.doubt is not None:
            lowest, highest = compared.doubt.widen((low, high))
            if lowest <= edge <= highest:
                return msgspec.structs.replace(judged, reason=compared.doubt.reason)
        return msgspec.structs.replace(judged, verdict="pass" if high < edge else "regression", reason=None)
    gap = abs(sign * estimate.centre - edge)
    needed = blocks_needed(estimate, item.blocks, gap, level)
    return msgspec.structs.replace(judged, blocks_needed=needed, seconds_needed=compared.seconds(needed))


def _holm(metrics: Sequence[GateMetric], compared: Sequence[Compared]) -> tuple[GateMetric, ...]:
    """Make regressions inconclusive that do not survive the correction for all limits judged at once."""
    ranked = sorted(range(len(metrics)), key=lambda index: _p_value(metrics[index]))
    kept = list(metrics)
    holds = True
    for rank, index in enumerate(ranked):
        metric, item = metrics[index], compared[index]
        level = item.level / (len(metrics) - rank)
        holds = holds and _p_value(metric) <= level / 2
        if metric.verdict != "regression" or holds or item.estimate is None:
            continue
        reason = (
            f"beyond the limit by itself, but not as one of {len(metrics)} gated metrics: "
            f"p = {_p_value(metric):.2g}, and {level / 2:.2g} is needed"
        )
        gap = abs(abs(item.estimate.centre) - math.log1p(metric.limit))
        needed = blocks_needed(item.estimate, item.result.blocks, gap, level)
        kept[index] = msgspec.structs.replace(
            metric, verdict="inconclusive", reason=reason, blocks_needed=needed, seconds_needed=item.seconds(needed)
        )
    return tuple(kept)


def _p_value(metric: GateMetric) -> float:
    return 1.0 if metric.p_value is None else metric.p_value


def _judge_memory(peak: MemoryPeak, limits: GateLimits) -> GateMetric:
    """Judge by the whole interval if a size is noisy; else by whole bytes, because rounding in a division must not fail
    a peak at exactly the limit."""
    judged = msgspec.structs.replace(_make_undecided(peak, limits), change=peak.ratio - 1)
    if not peak.bounds:
        allowed = math.floor(peak.a_bytes * (1 + judged.limit))
        exact: GateVerdict = "pass" if peak.b_bytes <= allowed else "regression"
        return msgspec.structs.replace(judged, verdict=exact, ci95=(peak.ratio - 1, peak.ratio - 1))
    low, high = (bound - 1 for bound in peak.bounds)
    verdict: GateVerdict = "pass" if high <= judged.limit else "regression" if low > judged.limit else "inconclusive"
    reason = None
    if verdict == "inconclusive":
        reason = f"two loads of the same code differ by up to {(high - low) / 2:.1%} here"
    return msgspec.structs.replace(judged, verdict=verdict, ci95=(low, high), reason=reason)


def _judge_outputs(a: str, b: str, item: Outputs, limits: GateLimits) -> tuple[GateVerdict, str] | None:
    """Return the verdict and its reason if the outputs of a pair fail, or None."""
    allowed = limits.max_abs_diff
    if allowed is None or item.identical:
        return None
    pair = f"outputs of `{b}` and `{a}`"
    if item.identical is None:
        return "inconclusive", f"{pair} must agree, but were not recorded"
    if item.max_abs_diff is None:
        unknown = "" if allowed == 0 else ", and by how much was not recorded"
        return "output mismatch", f"{pair} are not identical{unknown}"
    if allowed > 0 and item.max_abs_diff <= allowed:
        return None
    return "output mismatch", f"{pair} differ by up to {item.max_abs_diff:.3g}; allowed is {allowed:g}"


def _judge_quality(a: str, b: str, item: Outputs, limits: GateLimits) -> Iterator[tuple[GateQuality, str]]:
    """Yield each limit on the quality of a pair with its verdict, and the reason if it does not pass.

    Every output has to meet a limit. It passes only if the interval of the mean does so as well, since other prompts
    would then miss it too often.
    """
    known = {"max_abs_diff": item.max_abs_diff, **item.measures}
    means, compared = item.means or {}, item.compared or None
    for limit in limits.quality:
        value, spread = known.get(limit.metric), means.get(limit.metric)
        verdict, reason = _quality_verdict(limit, item, value, spread)
        # A share below 1 does not say which requests meet it.
        all_met = verdict == "pass" and (limit.metric != "exact_match" or value == 1)
        judged = GateQuality(
            limit=str(limit), a=a, b=b, verdict=verdict, worst=value, spread=spread, compared=compared,
            sure_share=_LEVEL ** (1 / compared) if all_met and compared else None,
        )  # fmt: skip
        yield judged, reason and f"outputs of `{b}` and `{a}` {reason}"


def _quality_verdict(
    limit: QualityLimit, item: Outputs, value: float | None, spread: MeasureMean | None
) -> tuple[GateVerdict, str]:
    if item.identical:
        return "pass", ""
    if item.identical is None:
        return "inconclusive", f"must have {limit}, but were not recorded"
    # Words, and images with their prompt, can be compared with outputs of any size.
    sizes = 0 if limit.metric in ("wer", "clip_score") else item.unmatched or 0
    if (unlike := sizes + (item.missing or 0)) and limit.metric not in ("exact_match", "first_difference"):
        of = f"{unlike} of {item.compared or unlike}"
        return "output mismatch", f"must have {limit}; {of} requests have another number, size, length or rate"
    if value is None:
        return "output mismatch", f"differ and have no {limit.metric}, which must be {limit}"
    if not limit.allows(value):
        return "output mismatch", f"have {limit.metric} {value:.4g}; it must be {limit}"
    if item.reduced is True:
        return "inconclusive", f"must have {limit}; the records keep smaller copies only, which have {value:.4g}"
    bounds = None if spread is None or limit.metric == "exact_match" else spread.ci95
    if spread is not None and bounds is not None and not all(limit.allows(bound) for bound in bounds):
        reach = f"[{bounds[0]:.4g}, {bounds[1]:.4g}] of {spread.n} requests"
        return (
            "inconclusive",
            f"have {limit.metric} {value:.4g}, but the mean's interval {reach} reaches beyond {limit}",
        )
    return "pass", ""


def _find_unmeasured(
    limits: GateLimits, judged: Sequence[GateMetric], pairs: Iterable[tuple[str, str]]
) -> Iterator[GateMetric]:
    """Yield the limits on metrics that a pair did not measure, or none did: they are not met."""
    known = {(item.metric, item.a, item.b) for item in judged}
    metrics = {item.metric for item in judged}
    for name, limit in limits.metrics.items():
        for a, b in pairs if name in metrics else [("", "")]:
            if (name, a, b) not in known:
                yield GateMetric(
                    metric=name, a=a, b=b, verdict="inconclusive", limit=limit, change=None, ci95=None,
                    place=limits.places.get(name), reason=_UNMEASURED_REASONS.get(name, "not measured on both sides"),
                )  # fmt: skip


_UNMEASURED_REASONS = {
    ALLOCATED: "not measured on both sides; without a device there is only `peak_host_rss_bytes`",
    **dict.fromkeys(
        (ENERGY, *ENERGY_PER), "not measured on both sides: it needs a counter of energy, and 2 s of each variant"
    ),
}
