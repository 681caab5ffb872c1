"""From a record to its verdicts: summaries, comparisons, the gate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode, InputError
from omni_cli.core.text import visible
from omni_cli.records.metrics import E2E, WER
from omni_cli.records.record import Record, Variant, is_of_server, whole_windows
from omni_cli.records.results import (
    MODEL_BASED_MEASURES,
    Comparison,
    Difference,
    GateResult,
    MemoryPeak,
    Outputs,
    Summary,
)
from omni_cli.stats.blocks import block_medians, get_summaries, shared_metrics, summarise
from omni_cli.stats.comparable import (
    Disturbance,
    changes_work,
    code_differences,
    disturbances,
    find_doubt,
    record_mismatches,
    settings_differences,
    split_allowed,
    work_differences,
)
from omni_cli.stats.compare import MARGIN, Compared, Doubt, block_time, break_even, compare_variants, memory_peaks
from omni_cli.stats.gate import check_metrics, judge
from omni_cli.stats.output_quality import compare_outputs
from omni_cli.stats.referee import UNEQUAL, as_differences, conditions, inequalities

NARROW = 0.01
"""A single variant is measured until the half width of its median's interval is below this share of the median."""


class ComparisonSpec(Struct, frozen=True):
    """The comparisons of a measurement. Limits apply to the one with `baseline`, or without it to the variants.

    `allowed` names fields of environment, workload or settings in which two records may differ. `strict`: servers under
    unequal conditions are not comparable.
    """

    limits: GateLimits | None = None
    metrics: tuple[str, ...] | None = None
    margin: float = MARGIN
    baseline: Record | None = None
    allowed: tuple[str, ...] = ()
    strict: bool = False

    def report(self, record: Record) -> BenchmarkReport:
        """Compute all comparisons. Raises `UsageError` for an unknown metric."""
        within = against_baseline = None
        if len(record.variants) > 1:
            within = compare_within(record, self if self.baseline is None else replace(self, limits=None))
        if self.baseline is not None:
            against_baseline = compare_records(self.baseline, record, self)
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
        summaries = [summarise(variant, E2E) for variant in record.variants]
        return all(s and s.ci95 and s.ci95[1] - s.ci95[0] <= 2 * NARROW * s.median for s in summaries)

    def mismatches(self, record: Record) -> tuple[Difference, ...]:
        """Return what rules out comparing the baseline with a record of this machine and workload, before measuring."""
        if self.baseline is None:
            return ()
        return split_allowed(record_mismatches(self.baseline, record), self.allowed)[0]


_DEFAULT_SPEC = ComparisonSpec()


class BenchmarkReport(Struct, frozen=True, dict=True):
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
        servers = self.record.variants if is_of_server(self.record) else ()
        return (*disturbances(self.record), *(item for variant in servers for item in conditions(variant)))

    def complete_record(self) -> Record:
        """Return the record with summaries, comparisons and the gate's verdict."""
        gates = [result.gate for result in self.results if result.gate is not None]
        return replace(
            self.record,
            variants=tuple(replace(variant, summary=self.summaries[variant.name]) for variant in self.record.variants),
            comparisons=tuple(item for result in self.results for item in result.comparisons),
            gate=gates[0] if gates else None,
        )


def own_report(record: Record) -> BenchmarkReport:
    """Compare the variants of a saved record again, with the margin that it was made with."""
    margin = next((item.margin for item in record.comparisons if item.margin), MARGIN)
    return ComparisonSpec(margin=margin).report(record)


_LEAVES_OUT = "pytest-benchmark"
"""A tool whose files have no sign of a benchmark that failed, except that it is not there."""


class Pair(Struct, frozen=True):
    """Variant `b` against variant `a`.

    `mismatches` rule out a verdict. `work` are the amounts of work that a varied setting changed, `differences` all
    other intended differences. `estimates`, from which the comparisons were made, are for the gate. `unequal` are the
    conditions in which two servers differ.
    """

    a: Variant
    b: Variant
    comparisons: tuple[Comparison, ...]
    memory: tuple[MemoryPeak, ...] = ()
    mismatches: tuple[Difference, ...] = ()
    work: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    outputs: Outputs = field(default_factory=Outputs)
    estimates: tuple[Compared, ...] = ()
    unequal: tuple[Disturbance, ...] = ()


class ComparisonResult(Struct, frozen=True):
    """The pairs of variants with their verdicts; `mismatches` and `differences` are those of the records, too.

    `unmatched` are variants without a counterpart, `failures` sentences on variants that failed. `gate` is the verdict
    on the limits, None without limits. `tool` is the other program that measured; None for our own. A saved document
    (`is_saved`) does not say how the pairs were measured.
    """

    pairs: tuple[Pair, ...]
    mismatches: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    unmatched: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    gate: GateResult | None = None
    tool: str | None = None
    is_saved: bool = False

    @property
    def is_comparable(self) -> bool:
        return not self.mismatches

    @property
    def interleaved(self) -> bool:
        """True if all pairs were measured interleaved."""
        return self.is_saved or (bool(self.comparisons) and all(item.interleaved for item in self.comparisons))

    @property
    def is_decided(self) -> bool:
        """True if more blocks would change nothing: limits are decided, else times and words, else chosen metrics."""
        if self.gate is not None and not self.failures:
            return self.gate.verdict != "inconclusive" and all(m.verdict != "inconclusive" for m in self.gate.metrics)
        decisive = [item for item in self.comparisons if item.metric in (E2E, WER)] or self.comparisons
        return all(item.verdict != "inconclusive" for item in decisive)

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


def compare_within(record: Record, spec: ComparisonSpec = _DEFAULT_SPEC) -> ComparisonResult:
    """Compare each further variant of a record with its first one. Raises `UsageError` for an unknown metric."""
    first, *others = record.variants
    failures = failed_variants(record.variants)
    if not failures:
        _check_shared(spec.metrics, [(first, other) for other in others])
    pairs = tuple(_pair(first, other, [record], replace(spec, allowed=())) for other in others)
    mismatches = tuple(item for pair in pairs for item in pair.mismatches)
    return _judge(ComparisonResult(pairs, mismatches, failures=failures), record, spec)


def compare_records(a: Record, b: Record, spec: ComparisonSpec = _DEFAULT_SPEC) -> ComparisonResult:
    """Compare the variants of `b` with those of `a`: by name, or the only one with the only one.

    Raises `UsageError` for an unknown metric and `InputError` if no variants match.
    """
    matched, unmatched = _match_variants(a, b)
    mismatches, excused = split_allowed(record_mismatches(a, b), spec.allowed)
    failures = (*failed_variants(a.variants, " of A"), *failed_variants(b.variants, " of B"))
    if not mismatches and not failures:
        _check_shared(spec.metrics, matched)
    pairs = tuple(_pair(*pair, [a, b], spec, find_doubt((a, b), pair, spec.margin)) for pair in matched)
    tool = a.workload.get("tool")
    gone = {item.name for item in a.variants} & set(unmatched) if tool == _LEAVES_OUT else ()
    found = [*mismatches, *(item for pair in pairs for item in pair.mismatches)]
    result = ComparisonResult(
        pairs,
        tuple(item for number, item in enumerate(found) if item not in found[:number]),
        (*excused, *code_differences(a, b)),
        unmatched,
        failures,
        tool=tool,
    )
    missing = [f"`{name}` is only in A, and {tool} leaves out what failed" for name in sorted(gone)]
    return _judge(result, b, spec, missing)


def _judge(
    result: ComparisonResult, record: Record, spec: ComparisonSpec, missing: Sequence[str] = ()
) -> ComparisonResult:
    """Add the gate, to which `missing` are sentences on what cannot be judged; a strict one refuses servers that the
    record measured under unequal conditions."""
    if spec.strict:
        unequal = [item for item in BenchmarkReport(record).disturbances if item.kind in UNEQUAL]
        unequal += [item for pair in result.pairs for item in pair.unequal]
        result = replace(result, mismatches=(*result.mismatches, *as_differences(unequal)))
    if spec.limits is None:
        return result
    gate = judge(
        spec.limits,
        [item for pair in result.pairs for item in pair.estimates],
        [peak for pair in result.pairs for peak in pair.memory],
        {(pair.a.name, pair.b.name): pair.outputs for pair in result.pairs},
        mismatches=result.mismatches,
        failures=result.failures,
        missing=missing,
    )
    return replace(result, gate=gate)


def _pair(a: Variant, b: Variant, records: Sequence[Record], spec: ComparisonSpec, doubt: Doubt | None = None) -> Pair:
    """Compare two variants of one record or of two."""
    (a, b), same_record = map(whole_windows, (a, b)), len(records) == 1
    settings = settings_differences(a, b)
    # A variant that failed, or has no samples, did less work.
    is_whole = all(variant.samples and not variant.failure for variant in (a, b))
    work = work_differences(a, b) if is_whole else ()
    unexplained = () if changes_work(settings) else work
    mismatches, differences = split_allowed(unexplained, spec.allowed)
    if not same_record and a.name == b.name:
        # Variants of the same name have the same configuration, so that other settings are an error.
        forbidden, settings = split_allowed(settings, spec.allowed)
        mismatches += forbidden
    estimates = compare_variants(
        a,
        b,
        same_record=same_record,
        sampling=[record.sampling for record in records],
        metrics=spec.metrics,
        margin=spec.margin,
        doubt=doubt,
        block_s=0.0 if any(record.workload.get("tool") for record in records) else block_time(a, b),
    )
    memory, outputs = memory_peaks(a, b, spec.margin), compare_outputs(a, b, records)
    work = () if unexplained else work
    unequal = inequalities(a, b) if all(map(is_of_server, records)) else ()
    comparisons = tuple(
        replace(
            item.result,
            work=work or UNSET,
            conditions=as_differences(unequal) or UNSET,
            outputs=outputs,
            break_even=break_even(a, b, item.result, memory) or UNSET,
        )
        for item in estimates
    )
    return Pair(a, b, comparisons, memory, mismatches, work, (*differences, *settings), outputs, estimates, unequal)


def _match_variants(a: Record, b: Record) -> tuple[list[tuple[Variant, Variant]], tuple[str, ...]]:
    names_a, names_b = ([variant.name for variant in record.variants] for record in (a, b))
    common = [name for name in names_a if name in names_b]
    if not common and len(names_a) == len(names_b) == 1:
        return [(a.variants[0], b.variants[0])], ()
    if not common:
        quoted = [", ".join(f"`{name}`" for name in names) for names in (names_a, names_b)]
        raise InputError(
            f"the records have no variant in common: {quoted[0]} in the first, {quoted[1]} in the second",
            hint="measure both with the same `--vary`, or each with a single variant",
        )
    alone = [name for name in (*names_a, *names_b) if name not in common]
    return [(a.variant(name), b.variant(name)) for name in common], tuple(alone)


def failed_variants(variants: Sequence[Variant], where: str = "") -> tuple[str, ...]:
    """Return sentences on the variants that failed, compared or not: a record that has one passes no gate."""
    return tuple(
        f"variant `{variant.name}`{where} failed: {visible(variant.failure, 500)}"
        for variant in variants
        if variant.failure
    )


def _check_shared(metrics: Sequence[str] | None, pairs: Sequence[tuple[Variant, Variant]]) -> None:
    check_metrics(metrics or (), [name for pair in pairs for name in shared_metrics(*pair)])
