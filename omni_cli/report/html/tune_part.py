"""A search of `omni tune` as a document: the answer, speed against memory and quality, and every setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_cli.report.bench_text import shown
from omni_cli.report.bench_units import limit, quantity, ratio, get_scale, title
from omni_cli.report.html.elements import Document, Figure, Part, Table, Tone, Verdict, get_sections
from omni_cli.report.html.figures import Trade, drawn_trade
from omni_cli.report.html.machine import get_device, environment_parts, reproduce_parts, workload_title
from omni_cli.report.tune_text import answer_text, ranking, settings_table
from omni_cli.report.units import count, seconds
from omni_cli.results import MEASURES
from omni_cli.tune_record import Standing, TuneRecord

_MEMORY = "peak_bytes"


def tune_document_page(name: str, record: TuneRecord, source: str) -> Document:
    """Return the document of a search; `name` is the prefix of its figures' ids."""
    ranked = ranking(record)
    details = [
        f"objective {title(record.objective)}",
        f"margin {limit(record.margin)}",
        count(len(record.candidates), "setting"),
        f"{count(record.starts, 'start')} in {count(len(record.rounds), 'round')}",
        seconds(record.elapsed_s),
        get_device(record.environment),
    ]
    sentences = answer_text(record).split("\n")
    word = sentences.pop(0) if record.verdict == "decided" else record.verdict
    tone: Tone = "good" if record.verdict == "decided" else "bad" if record.verdict == "infeasible" else "open"
    return Document(
        kind="Search",
        source=source,
        title=workload_title(record.workload),
        details=" · ".join(filter(None, details)),
        created=record.created,
        verdict=Verdict(word, tone, tuple(sentences)),
        sections=get_sections(
            [
                ("Trade-offs", [_memory_figure(name, ranked), *_quality_figures(name, ranked)]),
                ("Settings", [_table(record, ranked)]),
                ("Not possible", [_failures(record)]),
                ("Environment", environment_parts(record.environment, record.workload)),
                ("Reproduce", reproduce_parts(record.command, record.environment)),
            ]
        ),
    )


def _memory_figure(name: str, ranked: Sequence[Standing]) -> Figure | None:
    return _figure(
        f"{name}-memory",
        "Speed against memory",
        ranked,
        _MEMORY,
        lambda item: None if item.memory_bytes is None else float(item.memory_bytes),
        on_front=lambda item: item.on_front,
    )


def _quality_figures(name: str, ranked: Sequence[Standing]) -> list[Part | None]:
    """Draw each measure of outputs that at least two settings have; equal outputs have none."""
    figures: list[Part | None] = []
    for measure in MEASURES:

        def value(item: Standing, measure: str = measure) -> float | None:
            return None if item.outputs is None else item.outputs.measures.get(measure)

        if sum(value(item) is not None for item in ranked) > 1:
            figures.append(_figure(f"{name}-{measure}", f"Speed against {title(measure)}", ranked, measure, value))
    return figures


def _figure(
    name: str,
    heading: str,
    ranked: Sequence[Standing],
    metric: str,
    value: Callable[[Standing], float | None],
    on_front: Callable[[Standing], bool] = lambda _: False,
) -> Figure | None:
    known = [(item, amount) for item in ranked if item.ratio is not None and (amount := value(item)) is not None]
    if not known:
        return None
    scale, unit = get_scale(metric, max(amount for _, amount in known))
    rows = [
        Trade(item.name, item.ratio or 1.0, item.ci95, amount / scale, on_front(item), item.state == "best")
        for item, amount in known
    ]
    table = Table(
        heading,
        ("Setting", "Cost / best [95% CI]", title(metric)),
        tuple((item.name, ratio(item.ratio, item.ci95), quantity(metric, amount)) for item, amount in known),
        frozenset({1, 2}),
    )
    text = "Each diamond is a setting, the bar its 95% interval; further left is faster."
    if any(row.on_front for row in rows):
        text += " The line joins those that no other setting beats in both."
    return Figure(heading, text, drawn_trade(name, rows, title(metric) + (f" ({unit})" if unit != "1" else "")), table)


def _table(record: TuneRecord, ranked: Sequence[Standing]) -> Table:
    columns, rows = settings_table(record, ranked)
    heads = tuple(column[:1].upper() + column[1:] for column in columns)
    numeric = frozenset(place for place, column in enumerate(columns) if column not in ("Setting", "outputs"))
    return Table("From the best to the worst", heads, tuple(rows), numeric)


def _failures(record: TuneRecord) -> Table | None:
    rows = tuple((item.name, shown(item.problem)) for item in record.standings if item.problem is not None)
    return Table("Settings that cannot be the answer", ("Setting", "Reason"), rows) if rows else None
