"""From a record to its verdicts: summaries, comparisons, the gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from omni_cli.config.gate_limits import GateLimits
from omni_cli.errors import ExitCode
from omni_cli.metrics import E2E
from omni_cli.record import Record
from omni_cli.results import MODEL_BASED_MEASURES, Difference, Summary
from omni_cli.stats.blocks import block_medians
from omni_cli.stats.comparable import record_mismatches, split_allowed
from omni_cli.stats.compare import MARGIN
from omni_cli.stats.comparison_result import ComparisonResult, compare_records, compare_within
from omni_cli.stats.disturbance import Disturbance, disturbances
from omni_cli.stats.summary import get_summaries, summarise

NARROW = 0.01
"""A single variant is measured until the half width of its median's interval is below this share of the median."""


@dataclass(frozen=True)
class ComparisonSpec:
    """The comparisons of a measurement. Limits apply to the one with `baseline`, or without it to the variants."""

    limits: GateLimits | None = None
    metrics: tuple[str, ...] | None = None
    margin: float = MARGIN
    baseline: Record | None = None
    allowed: tuple[str, ...] = ()

    def report(self, record: Record) -> BenchmarkReport:
        """Compute all comparisons. Raises `UsageError` for an unknown metric."""
        within = against_baseline = None
        metrics = None if self.metrics is None else list(self.metrics)
        if len(record.variants) > 1:
            limits = self.limits if self.baseline is None else None
            within = compare_within(record, limits=limits, metrics=metrics, margin=self.margin)
        if self.baseline is not None:
            against_baseline = compare_records(
                self.baseline,
                record,
                limits=self.limits,
                metrics=metrics,
                margin=self.margin,
                allowed=self.allowed,
            )
        return BenchmarkReport(record, within, against_baseline)

    def without_model_based(self) -> ComparisonSpec:
        """Return the specification without limits on measures of models, which exist only at the end."""
        if self.limits is None:
            return self
        known = tuple(limit for limit in self.limits.quality if limit.metric not in MODEL_BASED_MEASURES)
        limits = replace(self.limits, quality=known)
        gates = limits.metrics or limits.quality or (limits.max_abs_diff, limits.memory) != (None, None)
        return replace(self, limits=limits if gates else None)

    def is_decided(self, record: Record) -> bool:
        """True if more blocks would change nothing."""
        report = self.report(record)
        if report.results:
            return all(result.is_decided for result in report.results)
        return all(_is_narrow(summarise(variant, E2E)) for variant in record.variants)

    def mismatches(self, record: Record) -> tuple[Difference, ...]:
        """Return the differences, known before measuring, that rule out comparing the baseline with a record of this
        machine and workload."""
        if self.baseline is None:
            return ()
        return split_allowed(record_mismatches(self.baseline, record), self.allowed)[0]


@dataclass(frozen=True)
class BenchmarkReport:
    """`within` compares the record's own variants, `against_baseline` an earlier record with this one."""

    record: Record
    within: ComparisonResult | None = None
    against_baseline: ComparisonResult | None = None

    @property
    def results(self) -> tuple[ComparisonResult, ...]:
        return tuple(item for item in (self.within, self.against_baseline) if item is not None)

    @property
    def exit_code(self) -> ExitCode:
        """The gate's exit code; without a gate, the first of the variants' and the baseline's that is not 0."""
        if any(variant.failure for variant in self.record.variants):
            return ExitCode.RUN_FAILED
        gated = [item.exit_code for item in self.results if item.gate is not None]
        codes = gated or [item.exit_code for item in self.results]
        return next((code for code in codes if code != ExitCode.OK), ExitCode.OK)

    @cached_property
    def summaries(self) -> dict[str, dict[str, Summary]]:
        """Summaries by variant and metric."""
        return {variant.name: get_summaries(variant) for variant in self.record.variants}

    @cached_property
    def block_medians(self) -> dict[str, dict[int, float]]:
        """Median end-to-end time in seconds, by variant and block."""
        by_variant = {variant.name: block_medians(variant, E2E) for variant in self.record.variants}
        return {name: dict(zip(*(part.tolist() for part in parts), strict=True)) for name, parts in by_variant.items()}

    @cached_property
    def disturbances(self) -> tuple[Disturbance, ...]:
        return disturbances(self.record)

    def complete_record(self) -> Record:
        """Return the record with summaries, comparisons and the gate's verdict."""
        gates = [result.gate for result in self.results if result.gate is not None]
        return msgspec.structs.replace(
            self.record,
            variants=tuple(
                msgspec.structs.replace(variant, summary=self.summaries[variant.name])
                for variant in self.record.variants
            ),
            comparisons=tuple(item for result in self.results for item in result.comparisons),
            gate=gates[0] if gates else None,
        )


def _is_narrow(summary: Summary | None) -> bool:
    if summary is None or summary.ci95 is None:
        return False
    low, high = summary.ci95
    return high - low <= 2 * NARROW * summary.median


def own_report(record: Record) -> BenchmarkReport:
    """Compare the variants of a saved record again, with the margin that it was made with."""
    margin = next((item.margin for item in record.comparisons if item.margin), MARGIN)
    return ComparisonSpec(margin=margin).report(record)
