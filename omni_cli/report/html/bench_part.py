"""A bench record as a document: the verdict, the measurements behind it, and the commands to repeat it."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.metrics import ALLOCATED, E2E, HOST_RSS
from omni_cli.record import Record, get_counters, is_of_server
from omni_cli.report.bench_notes import disturbance_warnings, warnings
from omni_cli.report.bench_server import load_text
from omni_cli.report.bench_text import Labels, shown
from omni_cli.report.bench_units import quantity, quantity_interval, title
from omni_cli.report.html.bench_figures import (
    Summaries,
    latency_figures,
    memory_figure,
    utilisation_figure,
    waterfall_figure,
)
from omni_cli.report.html.comparison import comparison_parts, gate_table, get_pairs, page_verdict
from omni_cli.report.html.elements import Advice, Document, Table, Verdict, get_sections
from omni_cli.report.html.machine import environment_parts, get_device, reproduce_parts, sentence, workload_title
from omni_cli.report.html.outputs_part import output_parts
from omni_cli.report.units import count
from omni_cli.stats.verdicts import BenchmarkReport, Pair
from omni_cli.text import visible

LABELS = Labels("baseline", "this run")


def bench_document(name: str, report: BenchmarkReport, source: str) -> Document:
    """Return the document of a bench record; `name` is the prefix of its figures' ids.

    `report` is about the record's own variants; the verdicts of a gate and of a comparison with a baseline are taken
    from the record.
    """
    record, summaries = report.record, report.summaries
    pairs = _pairs(report)
    return Document(
        kind="Benchmark",
        source=source,
        title=workload_title(record.workload),
        details=_details(record),
        created=record.created,
        verdict=_verdict(record, pairs, summaries),
        advice=_advice(report),
        sections=get_sections(
            [
                ("Results", [_results_table(record, summaries)]),
                ("Comparison", [gate_table(record.gate, pairs), *comparison_parts(name, pairs, LABELS)]),
                ("Outputs", output_parts(record)),
                ("Latency", latency_figures(name, record, summaries, report.block_medians)),
                ("Where a request waits", [waterfall_figure(name, record)]),
                ("Memory", [memory_figure(name, record)]),
                ("Machine", [utilisation_figure(name, record.utilisation)]),
                ("What ran", [_counters_table(record)]),
                ("Environment", environment_parts(record.environment, record.workload)),
                ("Reproduce", reproduce_parts(record.command, record.environment)),
            ]
        ),
    )


def _pairs(report: BenchmarkReport) -> tuple[Pair, ...]:
    """Return the record's own pairs, and those with a baseline, whose samples are in another file."""
    own = () if report.within is None else report.within.pairs
    names = {(pair.a.name, pair.b.name) for pair in own}
    return (*own, *get_pairs([item for item in report.record.comparisons if (item.a, item.b) not in names]))


def _verdict(record: Record, pairs: Sequence[Pair], summaries: Summaries) -> Verdict:
    broken = tuple(
        f"{variant.name}: {visible(variant.failure, 500)}." for variant in record.variants if variant.failure
    )
    if broken:
        return Verdict("failed" if record.gate is None else f"gate: {record.gate.verdict}", "bad", broken)
    verdict = page_verdict(record.gate, pairs, LABELS)
    if verdict is not None:
        return verdict
    (name, by_metric), *_ = summaries.items()
    if E2E not in by_metric:
        return Verdict("nothing measured", "open")
    latency = by_metric[E2E]
    bounds = quantity_interval(E2E, latency.ci95, latency.median)
    reach = f", with a 95% interval of {bounds}" if latency.ci95 else ""
    return Verdict(quantity(E2E, latency.median), "plain", (f"The median latency of {name}{reach}.",))


def _advice(report: BenchmarkReport) -> tuple[Advice, ...]:
    notes = disturbance_warnings(report.disturbances, report.record)
    if report.within is not None:
        notes = [*warnings(report.within), *notes]
    return tuple(Advice(sentence(note.message), sentence(note.hint) if note.hint else None) for note in notes)


def _details(record: Record) -> str:
    has_windows = is_of_server(record)
    runs = max(len(variant.samples) for variant in record.variants)
    blocks = len({sample.block for variant in record.variants for sample in variant.samples})
    batch = record.workload.get("batch_size")
    parts = [
        load_text(record.workload) if has_windows else batch and f"batch {shown(batch)}",
        get_device(record.environment),
        count(runs, "window" if has_windows else "run") + (" each" if len(record.variants) > 1 else ""),
        count(blocks, "block"),
    ]
    return " · ".join(filter(None, parts))


def _results_table(record: Record, summaries: Summaries) -> Table:
    rows = []
    for variant in record.variants:
        summary = summaries[variant.name].get(E2E)
        memory = variant.memory
        metric = ALLOCATED if memory.peak_allocated_bytes else HOST_RSS
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


def _counters_table(record: Record) -> Table | None:
    """List the counters by stage at the end of the variant's last run."""
    counters = {variant.name: get_counters(variant) for variant in record.variants}
    names = dict.fromkeys(
        (stage, name) for by_stage in counters.values() for stage, counted in by_stage.items() for name in counted
    )
    rows = [
        (stage, title(name), *(_counter(name, by_stage.get(stage, {}).get(name)) for by_stage in counters.values()))
        for stage, name in names
    ]
    happened = tuple(row for row in rows if set(row[2:]) - {"0", "-"})
    columns = ("Stage", "Counter", *counters)
    return Table("Counted since loading", columns, happened, frozenset(range(2, len(columns)))) if happened else None


def _counter(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return quantity(name, value) if value and name.endswith(("_s", "_bytes")) else f"{value:g}"
