"""A history as a view: every series with its levels, its steps, and the commits between which they lie."""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Sequence

import numpy as np

from omni_cli.core.text import visible
from omni_cli.records.metrics import get_unit
from omni_cli.records.results import HistoryChange, HistoryRecord, HistorySeries
from omni_cli.report.comparison_words import mismatch_list
from omni_cli.report.units import (
    count,
    get_scale,
    metric_title,
    one_line,
    percent,
    percent_interval,
    quantity,
    quantity_interval,
)
from omni_cli.report.view import (
    Element,
    Figure,
    Lines,
    Note,
    Panel,
    Panels,
    Paragraph,
    Section,
    Series,
    Shade,
    Table,
    Tone,
    Verdict,
    View,
    sentence,
)

_TONES: dict[str, Tone] = {"pass": "good", "regression": "bad", "failed": "bad"}
_HINTS = {
    "failed": "find out why, and measure again",
    "regression": "if that is intended, ignore it from now on: `omni history check --since DATE`",
    "not comparable": "nothing to do: a new series has begun; `--allow-difference FIELD` would continue the old one",
    "inconclusive": "add more records, or longer ones: raise `--time-budget` of `omni bench`, or the runs of another "
    "tool",
}
_COMMIT_DIGITS = 10
_NOISY = 10.0
# The figure of plain text.
_HEIGHT = 8
_LABEL = 12
_BEYOND = 5.0  # spreads around the levels that are drawn; what lies outside is marked at the edge


def history_view(history: HistoryRecord) -> View:
    """Return the view of a history: its series, their steps, and what failed."""
    failed = [
        (item, f"{item.created[:10]}, {one_line(item.variant)}: {visible(item.reason, 500)}")
        for item in history.failures
    ]
    dates = {point.record: point.created for series in history.series for point in series.points}
    dates |= {item.record: item.created for item in history.failures}
    days = sorted(date[:10] for date in dates.values())
    heading = f"{count(len(days), 'record')} in {one_line(history.folder)}"
    heading += f", {days[0]} to {days[-1]}" if days else ""
    columns = ("Variant", "Metric", "Records", "Newest", "Would show")
    rows = tuple(map(_row, history.series))
    table = Table("All series", columns, rows, frozenset({2, 3, 4}), lead=heading) if rows else None
    verdict, failure = _verdict(history, [text for item, text in failed if item.is_current])
    failures = [Paragraph(text) for _, text in failed]
    return View(
        kind="History",
        title=f"History of {one_line(history.folder)}",
        details=heading,
        created=max(dates.values(), default=""),
        verdict=verdict,
        heading="" if rows else heading,
        headline=f"omni history: {history.verdict}",
        closing="" if history.verdict is None else f"Check: {history.verdict}",
        failure=failure,
        sections=[
            Section("Series", [table]),
            *map(_series_section, history.series),
            Section("Failed, and in no series", failures, heading="Failed, and in no series"),
        ],
    )


def _verdict(history: HistoryRecord, failed: Sequence[str]) -> tuple[Verdict, Note | None]:
    """Return the verdict of the check, or without one the number of steps; and why the check did not pass."""
    word = history.verdict
    if word is None and failed:
        return Verdict("failed", "bad", tuple(map(sentence, failed))), None
    if word is None:
        steps = sum(len(series.changes) for series in history.series)
        still = sum(change.is_open for series in history.series for change in series.changes)
        sentences = (f"{still} for the worse and still there.",) if still else ()
        return Verdict(count(steps, "step") if steps else "no step", "bad" if still else "plain", sentences), None
    if word == "pass":
        return Verdict("check: pass", "good"), None
    reasons = "; ".join(history.reasons) or "the newest record has no series"
    verdict = Verdict(f"check: {word}", _TONES.get(word, "open"), (sentence(reasons),))
    return verdict, Note(f"{word}: {reasons}", _HINTS.get(word))


def _row(series: HistorySeries) -> tuple[str, ...]:
    newest = quantity(series.metric, series.points[-1].median)
    shows = "too few records" if series.detectable is None else "too noisy"
    if series.detectable is not None and series.detectable < _NOISY:
        shows = percent(series.detectable)
    return one_line(series.name), metric_title(series.metric), str(len(series.points)), newest, shows


def _series_section(series: HistorySeries) -> Section:
    """Draw a series, and say why it begins, if it is not the variant's first one, and where its steps are."""
    title = f"{one_line(series.name)}, {metric_title(series.metric)}"
    parts: list[Element | None] = [_figure(series) if len(series.points) > 1 else None]
    parts += [Lines(_draw(series))] if series.changes else []
    if series.differences:
        why = mismatch_list(series.differences, 3, "{} before, {} now")
        parts.append(Paragraph(f"a series of its own since {series.points[0].created[:10]}: {why}"))
    for number, change in enumerate(series.changes, start=1):
        parts.append(Paragraph(f"({number}) {_change_sentence(series, change)}"))
    return Section(title, parts, heading=title)


def _change_sentence(series: HistorySeries, change: HistoryChange) -> str:
    """Format `slower since 2026-11-02: +5.1% [+3.9%, +6.4%], still; commits a1b2..c3d4, seen after 5 records`."""
    bounds = (change.ci95[0] - 1, change.ci95[1] - 1)
    verdict = "worse" if change.verdict == "slower" else "better"
    if get_unit(series.metric) in ("s", "per second"):
        verdict = change.verdict
    still = ", still there" if change.is_open else ", no longer" if change.verdict == "slower" else ""
    after = f"seen after {count(change.found - change.at + 1, 'record')}"
    return (
        f"{verdict} since {series.points[change.at].created[:10]}: {percent_interval(change.ratio - 1, bounds)}{still}"
        f"; {_commits(series, change)}; {after}"
    )


def _commits(series: HistorySeries, change: HistoryChange) -> str:
    """Name the range of commits, or of dates where the records name no commits."""
    if change.same_commit and change.good:
        return f"the machine changed, not the code: commit {one_line(change.good[:_COMMIT_DIGITS])} on both sides"
    if change.good and change.bad:
        return f"commits {one_line(change.good[:_COMMIT_DIGITS])}..{one_line(change.bad[:_COMMIT_DIGITS])}"
    dates = [series.points[number].created[:10] for number in (change.earliest - 1, change.latest)]
    return f"between {dates[0]} and {dates[1]}, of unknown commits"


def _figure(series: HistorySeries) -> Figure:
    values = [point.median for point in series.points]
    scale, unit = get_scale(series.metric, statistics.median(values))
    medians = [value / scale for value in values]
    numbers = range(1, len(values) + 1)
    intervals = [
        Series("thin", (number, number), (point.ci95[0] / scale, point.ci95[1] / scale))
        for number, point in zip(numbers, series.points, strict=True)
        if point.ci95 is not None
    ]
    edges = [0, *(change.at for change in series.changes), len(values)]
    levels = [
        Series("line", (start + 1, end), (statistics.median(medians[start:end]),) * 2, "accent")
        for start, end in itertools.pairwise(edges)
    ]
    spans = tuple(
        Shade(change.earliest, change.latest + 1, "bad" if change.verdict == "slower" else "soft", f"({number})")
        for number, change in enumerate(series.changes, start=1)
    )
    panel = Panel("", unit, (*intervals, Series("dots", numbers, medians), *levels), spans=spans)
    rows = tuple(
        (
            str(number),
            point.created[:10],
            one_line(point.commit or "-")[:12],
            quantity(series.metric, point.median),
            quantity_interval(series.metric, point.ci95, point.median),
        )
        for number, point in zip(numbers, series.points, strict=True)
    )
    text = "Each dot is the median of a record, the bar its 95% interval, the line the level between two steps."
    return Figure(
        f"{metric_title(series.metric)} over {count(len(values), 'record')}",
        text + (" The step lies within the shaded span." if series.changes else ""),
        Panels((panel,), "record", (1, len(values)), height=210),
        Table("Records", ("Record", "Date", "Commit", "Median", "95% CI"), rows, frozenset({0, 3, 4})),
    )


def _draw(series: HistorySeries) -> tuple[str, ...]:
    """Draw the newest records that fit a terminal; steps have the numbers of their sentences below."""
    values = np.array([point.median for point in series.points])
    edges = [0, *(change.at for change in series.changes), len(values)]
    levels = np.concatenate([np.full(b - a, np.median(values[a:b])) for a, b in itertools.pairwise(edges)])
    skipped = max(len(values) - (shutil.get_terminal_size().columns - _LABEL - 4), 0)
    reach = max(_BEYOND * float(np.median(np.abs(values - levels))), 0.01 * float(levels.max()))
    shown = slice(skipped, None)
    low, high = float(levels[shown].min()) - reach, float(levels[shown].max()) + reach
    low, high = max(low, min(values[shown].min(), levels.min())), min(high, max(values[shown].max(), levels.max()))
    scale = (_HEIGHT - 1) / ((high - low) or 1.0)
    rows = [[" "] * (len(values) - skipped) for _ in range(_HEIGHT)]
    for column, (value, level) in enumerate(zip(values[shown], levels[shown], strict=True)):
        rows[_HEIGHT - 1 - round((level - low) * scale)][column] = "─"
        outside = "↑" if value > high else "↓" if value < low else "•"
        rows[_HEIGHT - 1 - round((min(max(value, low), high) - low) * scale)][column] = outside
    names = {0: quantity(series.metric, high), _HEIGHT - 1: quantity(series.metric, low, high)}
    lines = [f"{names.get(number, ''):>{_LABEL}} │{''.join(row)}".rstrip() for number, row in enumerate(rows)]
    return (*lines, " " * (_LABEL + 2) + _marks(series, skipped))


def _marks(series: HistorySeries, skipped: int) -> str:
    """Mark the span of each step by dots, and its place by its number."""
    marks = [" "] * len(series.points)
    for number, change in enumerate(series.changes, start=1):
        marks[change.earliest : change.latest + 1] = "·" * (change.latest + 1 - change.earliest)
        marks[change.at] = str(number)[-1]
    return "".join(marks[skipped:]).rstrip()
