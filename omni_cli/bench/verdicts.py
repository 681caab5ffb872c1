"""From a record to what is said about it: summaries, comparisons, the gate."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from omni_cli.config.gate_file import GateLimits
from omni_cli.errors import ExitCode
from omni_cli.record import E2E, Record, Variant, metric_names
from omni_cli.report.bench_json import comparisons_json, gate_json, summary_json
from omni_cli.report.bench_notes import exit_code
from omni_cli.stats.comparable import Difference, record_mismatches, split_allowed
from omni_cli.stats.compare import MARGIN
from omni_cli.stats.findings import Findings, compare_records, compare_within
from omni_cli.stats.summary import Summary, summarise

NARROW = 0.01
"""A single variant is measured until the interval of its median reaches no further than this share of it."""


@dataclass(frozen=True)
class Question:
    """What a measurement is to answer. With a `baseline`, the limits are about that; else about the variants."""

    limits: GateLimits | None = None
    metrics: tuple[str, ...] | None = None
    margin: float = MARGIN
    baseline: Record | None = None
    allowed: tuple[str, ...] = ()

    def answer(self, record: Record) -> Answer:
        """Everything that can be said. Raises `UsageError` for an unknown metric."""
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
        return Answer(record, within, against_baseline)

    def is_decided(self, record: Record) -> bool:
        """Whether more blocks would change nothing."""
        answer = self.answer(record)
        if answer.findings:
            return all(findings.is_decided for findings in answer.findings)
        return all(_is_narrow(summarise(variant, E2E)) for variant in record.variants)

    def mismatches(self, record: Record) -> tuple[Difference, ...]:
        """Why the baseline cannot be compared with a record of this machine and workload; known before measuring."""
        if self.baseline is None:
            return ()
        return split_allowed(record_mismatches(self.baseline, record), self.allowed)[0]


@dataclass(frozen=True)
class Answer:
    """`within` is about the record's own variants, `against_baseline` about an earlier record."""

    record: Record
    within: Findings | None = None
    against_baseline: Findings | None = None

    @property
    def findings(self) -> tuple[Findings, ...]:
        return tuple(item for item in (self.within, self.against_baseline) if item is not None)

    @property
    def exit_code(self) -> ExitCode:
        """The gate's; without one, what is bad about the variants, then about the baseline."""
        codes = [exit_code(findings) for findings in self.findings]
        if any(variant.error is not None for variant in self.record.variants):
            return ExitCode.RUN_FAILED
        gated = [code for code, findings in zip(codes, self.findings, strict=True) if findings.gate is not None]
        return next((code for code in gated or codes if code != ExitCode.OK), ExitCode.OK)

    def complete_record(self) -> Record:
        """The record with summaries, comparisons and the gate's verdict."""
        gates = [findings.gate for findings in self.findings if findings.gate is not None]
        outputs_only = [entry for entry in self.record.comparisons if not self.within]
        return msgspec.structs.replace(
            self.record,
            variants=tuple(_with_summary(variant) for variant in self.record.variants),
            comparisons=tuple(
                [
                    *outputs_only,
                    *(e for findings in self.findings for pair in findings.pairs for e in comparisons_json(pair)),
                ]
            ),
            gate=gate_json(gates[0]) if gates else None,
        )


def summaries_of(variant: Variant) -> tuple[Summary, ...]:
    found = (summarise(variant, metric) for metric in metric_names(variant))
    return tuple(summary for summary in found if summary is not None)


def _with_summary(variant: Variant) -> Variant:
    return msgspec.structs.replace(variant, summary={s.metric: summary_json(s) for s in summaries_of(variant)})


def _is_narrow(summary: Summary | None) -> bool:
    if summary is None or summary.ci95 is None:
        return False
    low, high = summary.ci95
    return high - low <= 2 * NARROW * summary.median
