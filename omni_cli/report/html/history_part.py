"""A history as a page: every series with its levels, and the commits between which its steps lie."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

from omni_cli.report.bench_text import metric_title, shown
from omni_cli.report.bench_units import quantity, quantity_interval, get_scale
from omni_cli.report.history_text import (
    COLUMNS,
    NUMERIC,
    check_failure,
    failed_sentence,
    heading,
    series_row,
    series_sentences,
)
from omni_cli.report.html.elements import Document, Figure, Paragraph, Part, Table, Tone, Verdict, get_sections
from omni_cli.report.html.figures import Level, Spread, drawn_history
from omni_cli.report.html.machine import sentence
from omni_cli.report.units import count
from omni_cli.results import HistoryRecord, HistorySeries

_TONES: dict[str, Tone] = {"pass": "good", "regression": "bad", "failed": "bad"}


def history_document(name: str, history: HistoryRecord, source: str) -> Document:
    """Return the document of a history; `name` is the prefix of its figures' ids."""
    rows = tuple(map(series_row, history.series))
    sections: list[tuple[str, list[Part | None]]] = [("Series", [Table("All series", COLUMNS, rows, NUMERIC)])]
    failed = [Paragraph(sentence(failed_sentence(item))) for item in history.failures]
    sections.append(("Failed, and in no series", [*failed]))
    for number, series in enumerate(history.series):
        parts = [*(Paragraph(sentence(text)) for text in series_sentences(series))]
        figure = _figure(f"{name}-s{number}", series) if len(series.points) > 1 else None
        if figure is not None or parts:
            sections.append((f"{shown(series.variant)}, {metric_title(series.metric)}", [figure, *parts]))
    ends = [*(series.points[-1].created for series in history.series), *(item.created for item in history.failures)]
    created = max(ends, default="")
    return Document(
        kind="History",
        source=source,
        title=f"History of {shown(history.folder)}",
        details=heading(history),
        created=created,
        verdict=_verdict(history),
        sections=get_sections(sections),
    )


def _verdict(history: HistoryRecord) -> Verdict:
    if history.verdict is not None:
        failure = check_failure(history)
        sentences = () if failure is None else (sentence(failure.message.partition(": ")[2]),)
        return Verdict(f"check: {history.verdict}", _TONES.get(history.verdict, "open"), sentences)
    failed = [item for item in history.failures if item.is_current]
    if failed:
        return Verdict("failed", "bad", tuple(sentence(failed_sentence(item)) for item in failed))
    steps = sum(len(series.changes) for series in history.series)
    still = sum(change.is_open for series in history.series for change in series.changes)
    word = count(steps, "step") if steps else "no step"
    return Verdict(word, "bad" if still else "plain", (f"{still} for the worse and still there.",) if still else ())


def _figure(name: str, series: HistorySeries) -> Figure:
    values = [point.median for point in series.points]
    scale, unit = get_scale(series.metric, statistics.median(values))
    rows = [
        Spread("", (), point.median / scale, point.ci95 and (point.ci95[0] / scale, point.ci95[1] / scale), "")
        for point in series.points
    ]
    text = "Each dot is the median of a record, the bar its 95% interval, the line the level between two steps."
    if series.changes:
        text += " The step lies within the shaded span."
    return Figure(
        f"{metric_title(series.metric)} over {count(len(values), 'record')}",
        text,
        drawn_history(name, rows, list(_levels(series, scale)), unit),
        _points_table(series),
    )


def _levels(series: HistorySeries, scale: float) -> Iterator[Level]:
    values = [point.median / scale for point in series.points]
    edges = [0, *(change.at for change in series.changes), len(values)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        change = series.changes[number - 1] if number else None
        yield Level(
            start + 1,
            end,
            statistics.median(values[start:end]),
            None if change is None else (change.earliest, change.latest + 1),
            change is not None and change.verdict == "slower",
        )


def _points_table(series: HistorySeries) -> Table:
    rows = tuple(
        (
            str(number),
            point.created[:10],
            shown(point.commit or "-")[:12],
            quantity(series.metric, point.median),
            quantity_interval(series.metric, point.ci95, point.median),
        )
        for number, point in enumerate(series.points, start=1)
    )
    return Table("Records", ("Record", "Date", "Commit", "Median", "95% CI"), rows, frozenset({0, 3, 4}))
