"""A bench record as a document: the verdict, what it rests on, and how to get it again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from omni_cli.errors import InputError
from omni_cli.record import E2E, Record, Variant, metric_names
from omni_cli.report.bench_notes import machine_warnings, warnings
from omni_cli.report.bench_server import is_server, load_text
from omni_cli.report.bench_text import Labels, shown
from omni_cli.report.bench_units import quantity, quantity_interval, title
from omni_cli.report.html.bench_figures import Summaries, latency_figures, memory_figure, waterfall_figure
from omni_cli.report.html.comparison import comparison_parts, gate_table, gated_values, verdict_of
from omni_cli.report.html.elements import Advice, Document, Table, Verdict, sections_of
from omni_cli.report.html.machine import device_of, environment_parts, reproduce_parts, sentence, workload_title
from omni_cli.report.html.stored import Compared, StoredComparison, StoredGate, compared_of, gate_of
from omni_cli.report.html.utilisation import utilisation_figure
from omni_cli.report.units import count
from omni_cli.stats.compare import MARGIN
from omni_cli.stats.findings import Findings, compare_within
from omni_cli.stats.gate import Gate
from omni_cli.stats.payback import counters_of
from omni_cli.stats.summary import Summary, summarise

LABELS = Labels("baseline", "this run")


def bench_document(name: str, record: Record, source: str) -> Document:
    """Everything that a bench record says; `name` begins the ids of its figures.

    Raises `InputError` for verdicts in it that no omni wrote.
    """
    summaries = {variant.name: _summaries(variant) for variant in record.variants}
    stored, stored_gate = _stored(record, source)
    findings = _findings(record, stored)
    compared = _compared(findings, stored)
    gate = None if stored_gate is None else gate_of(stored_gate, gated_values(compared))
    return Document(
        kind="Benchmark",
        source=source,
        title=workload_title(record.workload),
        details=_details(record),
        created=record.created,
        verdict=_verdict(record, gate, compared, summaries),
        advice=_advice(record, findings),
        sections=sections_of(
            [
                ("Results", [_results_table(record, summaries)]),
                ("Comparison", [gate_table(gate), *comparison_parts(name, compared, LABELS)]),
                ("Latency", latency_figures(name, record, summaries)),
                ("Where a request waits", [waterfall_figure(name, record)]),
                ("Memory", [memory_figure(name, record)]),
                ("Machine", [utilisation_figure(name, record.utilisation)]),
                ("What ran", [_engagement_table(record)]),
                ("Environment", environment_parts(record.environment, record.workload)),
                ("Reproduce", reproduce_parts(record.command, record.environment)),
            ]
        ),
    )


def _stored(record: Record, source: str) -> tuple[tuple[StoredComparison, ...], StoredGate | None]:
    try:
        comparisons = msgspec.convert(record.comparisons, tuple[StoredComparison, ...])
        return comparisons, None if record.gate is None else msgspec.convert(record.gate, StoredGate)
    except msgspec.ValidationError as error:
        raise InputError(f"`{source}`: its verdicts are none of omni's: {shown(str(error))}") from error


def _findings(record: Record, stored: Sequence[StoredComparison]) -> Findings | None:
    """The record's variants compared anew, with the margin that it was made with."""
    if len(record.variants) < 2:
        return None
    margin = next((item.margin for item in stored if item.margin), MARGIN)
    return compare_within(record, margin=margin)


def _compared(findings: Findings | None, stored: Sequence[StoredComparison]) -> tuple[Compared, ...]:
    """The record's own pairs, and those with a baseline, whose samples are in another file."""
    own = () if findings is None else tuple(Compared(pair, pair.payback) for pair in findings.pairs)
    names = {(entry.pair.a.name, entry.pair.b.name) for entry in own}
    return (*own, *compared_of([item for item in stored if (item.a, item.b) not in names]))


def _summaries(variant: Variant) -> dict[str, Summary]:
    found = (summarise(variant, metric) for metric in metric_names(variant))
    return {summary.metric: summary for summary in found if summary is not None}


def _verdict(record: Record, gate: Gate | None, compared: Sequence[Compared], summaries: Summaries) -> Verdict:
    broken = tuple(f"{variant.name}: {shown(variant.error)}." for variant in record.variants if variant.error)
    if broken:
        return Verdict("failed" if gate is None else f"gate: {gate.verdict}", "bad", broken)
    verdict = verdict_of(gate, compared, LABELS)
    if verdict is not None:
        return verdict
    (name, found), *_ = summaries.items()
    if E2E not in found:
        return Verdict("nothing measured", "open")
    latency = found[E2E]
    bounds = quantity_interval(E2E, latency.ci95, latency.median)
    reach = f", with a 95% interval of {bounds}" if latency.ci95 else ""
    return Verdict(quantity(E2E, latency.median), "plain", (f"The median latency of {name}{reach}.",))


def _advice(record: Record, findings: Findings | None) -> tuple[Advice, ...]:
    notes = [*([] if findings is None else warnings(findings)), *machine_warnings(record)]
    return tuple(Advice(sentence(note.message), sentence(note.hint) if note.hint else None) for note in notes)


def _details(record: Record) -> str:
    is_of_server = is_server(record)
    runs = max(len(variant.samples) for variant in record.variants)
    blocks = len({sample.block for variant in record.variants for sample in variant.samples})
    parts = [
        load_text(record.workload) if is_of_server else f"batch {shown(record.workload.get('batch_size', '?'))}",
        device_of(record.environment),
        count(runs, "window" if is_of_server else "run") + (" each" if len(record.variants) > 1 else ""),
        count(blocks, "block"),
    ]
    return " · ".join(filter(None, parts))


def _results_table(record: Record, summaries: Summaries) -> Table:
    rows = []
    for variant in record.variants:
        summary = summaries[variant.name].get(E2E)
        memory = variant.memory
        metric = "peak_allocated_bytes" if memory.peak_allocated_bytes else "peak_host_rss_bytes"
        rows.append(
            (
                variant.name,
                "-" if summary is None else quantity(E2E, summary.median),
                "-" if summary is None else quantity_interval(E2E, summary.ci95, summary.median),
                str(len(variant.samples)),
                f"{quantity(metric, getattr(memory, metric))}",
            )
        )
    device = any(variant.memory.peak_allocated_bytes for variant in record.variants)
    peak = "Peak allocated" if device else "Peak host RSS"
    return Table("From end to end", ("Variant", "Median", "95% CI", "Runs", peak), tuple(rows), frozenset({1, 2, 3, 4}))


def _engagement_table(record: Record) -> Table | None:
    """By stage, what had happened when the variant's last run ended."""
    counters = {variant.name: counters_of(variant) for variant in record.variants}
    names = dict.fromkeys(
        (stage, name) for found in counters.values() for stage, counted in found.items() for name in counted
    )
    rows = [
        (stage, title(name), *(_counter(name, found.get(stage, {}).get(name)) for found in counters.values()))
        for stage, name in names
    ]
    happened = tuple(row for row in rows if set(row[2:]) - {"0", "-"})
    columns = ("Stage", "Counter", *counters)
    return Table("Counted since loading", columns, happened, frozenset(range(2, len(columns)))) if happened else None


def _counter(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return quantity(name, value) if value and name.endswith(("_s", "_bytes")) else f"{value:g}"
