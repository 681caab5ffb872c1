"""The comparison of one record's variants, or of two records: what `omni bench` and `omni compare` report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import UNSET

from omni_cli.config.gate_limits import GateLimits
from omni_cli.errors import ExitCode, InputError, UsageError
from omni_cli.metrics import E2E, GATED_MEMORY
from omni_cli.record import Record, Variant, metric_names
from omni_cli.results import (
    CompareRecord,
    Comparison,
    Difference,
    GateResult,
    MemoryPeak,
    Outputs,
    RecordOrigin,
)
from omni_cli.stats.break_even import break_even
from omni_cli.stats.comparable import (
    changes_work,
    code_differences,
    record_mismatches,
    settings_differences,
    split_allowed,
    work_differences,
)
from omni_cli.stats.compare import MARGIN, Compared, compare_variants, shared_metrics
from omni_cli.stats.disturbance import is_slowed
from omni_cli.stats.gate import judge
from omni_cli.stats.memory import memory_peaks
from omni_cli.stats.output_quality import kept_distance
from omni_cli.text import suggest, visible

_UNKNOWN = Outputs()
_LEAVES_OUT = "pytest-benchmark"
"""A tool whose files have no sign of a benchmark that failed, except that it is not there."""


@dataclass(frozen=True)
class Pair:
    """Variant `b` against variant `a`.

    `mismatches` rule out a verdict. `work` are the amounts of work that a varied setting changed, `differences` all
    other intended differences. `estimates`, from which the comparisons were made, are for the gate.
    """

    a: Variant
    b: Variant
    comparisons: tuple[Comparison, ...]
    memory: tuple[MemoryPeak, ...] = ()
    mismatches: tuple[Difference, ...] = ()
    work: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    outputs: Outputs = _UNKNOWN
    estimates: tuple[Compared, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ComparisonResult:
    """`interleaved`: all pairs were measured interleaved.

    `unmatched` are variants without a counterpart, `failures` sentences on variants that failed. `gate` is None
    without limits. `tool` is the other program that measured; None for our own.
    """

    pairs: tuple[Pair, ...]
    mismatches: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    unmatched: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    interleaved: bool = False
    gate: GateResult | None = None
    tool: str | None = None

    @property
    def is_comparable(self) -> bool:
        return not self.mismatches

    @property
    def is_decided(self) -> bool:
        """True if more blocks would change nothing: each limit, or without a gate each end-to-end time, is decided."""
        if self.gate is not None and not self.failures:
            return self.gate.verdict != "inconclusive" and all(m.verdict != "inconclusive" for m in self.gate.metrics)
        return all(item.verdict != "inconclusive" for item in self.comparisons if item.metric == E2E)

    @property
    def exit_code(self) -> ExitCode:
        """The gate's exit code; without a gate, 6 if a variant failed, 4 if nothing may be compared and 3 if nothing is
        decided."""
        if self.gate is not None:
            return self.gate.exit_code
        if self.failures:
            return ExitCode.RUN_FAILED
        if not self.is_comparable:
            return ExitCode.NOT_COMPARABLE
        if self.pairs and all(item.verdict == "inconclusive" for item in self.comparisons):
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(item for pair in self.pairs for item in pair.comparisons)


def compare_within(
    record: Record,
    *,
    limits: GateLimits | None = None,
    metrics: Sequence[str] | None = None,
    margin: float = MARGIN,
) -> ComparisonResult:
    """Compare each further variant of a record with its first one. Raises `UsageError` for an unknown metric."""
    first, *others = record.variants
    failures = failed_variants(record.variants)
    if not failures:
        check_metrics(metrics or (), _shared([(first, other) for other in others]))
    pairs = tuple(_pair(first, other, [record], same_record=True, metrics=metrics, margin=margin) for other in others)
    mismatches = tuple(item for pair in pairs for item in pair.mismatches)
    return _judged(pairs, mismatches, (), limits, failures)


def compare_records(
    a: Record,
    b: Record,
    *,
    limits: GateLimits | None = None,
    metrics: Sequence[str] | None = None,
    margin: float = MARGIN,
    allowed: Iterable[str] = (),
) -> ComparisonResult:
    """Compare the variants of `b` with those of `a`: by name, or the only one with the only one.

    `allowed` names fields of environment, workload or settings that may differ. Raises `UsageError` for an unknown
    metric and `InputError` if no variants match.
    """
    matched, unmatched = _matched(a, b)
    allowed = tuple(allowed)
    mismatches, excused = split_allowed(record_mismatches(a, b), allowed)
    failures = (*failed_variants(a.variants, " of A"), *failed_variants(b.variants, " of B"))
    if not mismatches and not failures:
        check_metrics(metrics or (), _shared(matched))
    pairs = tuple(
        _pair(*pair, [a, b], same_record=False, metrics=metrics, margin=margin, allowed=allowed) for pair in matched
    )
    every = (*mismatches, *(item for pair in pairs for item in pair.mismatches))
    differences = (*excused, *code_differences(a, b))
    unique = tuple(item for number, item in enumerate(every) if item not in every[:number])
    tool = a.workload.get("tool")
    gone = {item.name for item in a.variants} & set(unmatched) if tool == _LEAVES_OUT else ()
    missing = tuple(f"`{name}` is only in A, and {tool} leaves out what failed" for name in sorted(gone))
    result = _judged(pairs, unique, differences, limits, failures, missing)
    return replace(result, unmatched=unmatched, tool=tool)


def failed_variants(variants: Sequence[Variant], where: str = "") -> tuple[str, ...]:
    """Return sentences on the variants that failed, compared or not: a record that has one passes no gate."""
    return tuple(
        f"variant `{variant.name}`{where} failed: {visible(variant.failure, 500)}"
        for variant in variants
        if variant.failure
    )


def _judged(
    pairs: tuple[Pair, ...],
    mismatches: tuple[Difference, ...],
    differences: tuple[Difference, ...],
    limits: GateLimits | None,
    failures: tuple[str, ...],
    missing: tuple[str, ...] = (),
) -> ComparisonResult:
    gate = None
    if limits is not None:
        gate = judge(
            limits,
            [item for pair in pairs for item in pair.estimates],
            [peak for pair in pairs for peak in pair.memory],
            {(pair.a.name, pair.b.name): pair.outputs for pair in pairs},
            mismatches=mismatches,
            failures=failures,
            missing=missing,
        )
    comparisons = [item for pair in pairs for item in pair.comparisons]
    interleaved = bool(comparisons) and all(item.interleaved for item in comparisons)
    return ComparisonResult(pairs, mismatches, differences, (), failures, interleaved, gate)


def _pair(
    a: Variant,
    b: Variant,
    records: Sequence[Record],
    *,
    same_record: bool,
    metrics: Sequence[str] | None,
    margin: float,
    allowed: tuple[str, ...] = (),
) -> Pair:
    settings = settings_differences(a, b)
    # A variant that failed, or has no samples, did less work.
    is_whole = all(variant.samples and not variant.failure for variant in (a, b))
    work = work_differences(a, b) if is_whole else ()
    unexplained = () if changes_work(settings) else work
    mismatches, differences = split_allowed(unexplained, allowed)
    if not same_record and a.name == b.name:
        # Variants of the same name have the same configuration, so that other settings are an error.
        forbidden, settings = split_allowed(settings, allowed)
        mismatches += forbidden
    estimates = compare_variants(
        a,
        b,
        same_record=same_record,
        sampling=[record.sampling for record in records],
        metrics=None if metrics is None else [name for name in metrics if name in shared_metrics(a, b)],
        margin=margin,
        slowed=(False, False) if same_record else (is_slowed(records[0]), is_slowed(records[1])),
    )
    memory, outputs = memory_peaks(a, b, margin), _outputs(a, b, records)
    work = () if unexplained else work
    differs = (*differences, *settings)
    comparisons = tuple(
        msgspec.structs.replace(
            item.result, work=work or UNSET, outputs=outputs, break_even=break_even(a, b, item.result, memory) or UNSET
        )
        for item in estimates
    )
    return Pair(a, b, comparisons, memory, mismatches, work, differs, outputs, estimates)


def compare_document(result: ComparisonResult, a: RecordOrigin, b: RecordOrigin) -> CompareRecord:
    """Return the document of `omni compare --json`; `a` and `b` are the files of the records."""
    shown = result.pairs if result.is_comparable else ()
    return CompareRecord(
        a=a,
        b=b,
        comparable=result.is_comparable,
        mismatches=result.mismatches,
        differences=(
            *result.differences,
            *(item for pair in result.pairs for item in (*pair.work, *pair.differences)),
        ),
        unmatched=result.unmatched,
        failures=result.failures,
        comparisons=tuple(item for pair in shown for item in pair.comparisons),
        memory=tuple(peak for pair in shown for peak in pair.memory),
        gate=result.gate,
    )


def _outputs(a: Variant, b: Variant, records: Sequence[Record]) -> Outputs:
    """Compare by hash; a difference is the one measured during the run, else that of the outputs which are kept."""
    identical = None
    if a.output_sha256 is not None and b.output_sha256 is not None:
        identical = a.output_sha256 == b.output_sha256
    if len(records) == 1 and not identical:
        measured = [entry.outputs for entry in records[0].comparisons if (entry.a, entry.b) == (a.name, b.name)]
        if measured:
            return measured[-1]
    if identical is False and a.outputs and b.outputs:
        return kept_distance(a.outputs, b.outputs)
    return Outputs(identical, 0.0 if identical else None)


def _matched(a: Record, b: Record) -> tuple[list[tuple[Variant, Variant]], tuple[str, ...]]:
    names_a, names_b = ([variant.name for variant in record.variants] for record in (a, b))
    common = [name for name in names_a if name in names_b]
    if not common and len(names_a) == len(names_b) == 1:
        return [(a.variants[0], b.variants[0])], ()
    if not common:
        raise InputError(
            f"the records have no variant in common: {_quoted(names_a)} in the first, {_quoted(names_b)} in the second",
            hint="measure both with the same `--vary`, or each with a single variant",
        )
    alone = [name for name in (*names_a, *names_b) if name not in common]
    return [(a.variant(name), b.variant(name)) for name in common], tuple(alone)


def check_limits(limits: GateLimits | None, records: Sequence[Record]) -> None:
    """Raise `UsageError` for a limit on something that no variant of the records has, unless one failed: it may lack
    everything."""
    variants = [variant for record in records for variant in record.variants]
    if limits is not None and not any(variant.failure for variant in variants):
        check_metrics(limits.metrics, [name for variant in variants for name in metric_names(variant)], limits.places)


def check_metrics(names: Iterable[str], known: Iterable[str], places: Mapping[str, str] | None = None) -> None:
    """Raise `UsageError` for a metric that is neither `known` nor a size that can be gated; `places` are where
    names are written."""
    choices = [*dict.fromkeys(known), *GATED_MEMORY]
    for name in names:
        if name not in choices:
            place = (places or {}).get(name)
            message = f"unknown metric `{visible(name, 80)}`"
            raise UsageError(
                f"{place}: {message}" if place else message,
                hint=suggest(name, choices) or f"there are {', '.join(choices)}",
            )


def _shared(pairs: Sequence[tuple[Variant, Variant]]) -> list[str]:
    return [name for pair in pairs for name in shared_metrics(*pair)]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
