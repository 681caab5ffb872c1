"""The report of `omni history`: one line per series, and one per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omni_cli.metrics import get_unit
from omni_cli.report.bench_markdown import cell, table
from omni_cli.report.bench_notes import Note
from omni_cli.report.bench_text import metric_title, shown
from omni_cli.report.bench_units import percent, percent_interval, quantity
from omni_cli.report.history_figure import history_figure
from omni_cli.report.tables import aligned
from omni_cli.report.units import count
from omni_cli.results import Difference, HistoryChange, HistoryFailure, HistoryRecord, HistorySeries
from omni_cli.text import visible

COLUMNS = ("Variant", "Metric", "Records", "Newest", "Would show")
NUMERIC = frozenset({2, 3, 4})

_COMMIT_DIGITS = 10
_NOISY = 10.0


def history_text(history: HistoryRecord) -> str:
    """Format the table of all series, and the steps of each below it."""
    rows = [COLUMNS, *map(series_row, history.series)] if history.series else []
    lines = [heading(history), *aligned(rows, right=NUMERIC)]
    for series in history.series:
        if series.changes or series.differences:
            lines += ["", f"{shown(series.variant)}, {metric_title(series.metric)}"]
            lines += history_figure(series) if series.changes else []
            lines += [f"  {text}" for text in series_sentences(series)]
    if history.failures:
        lines += ["", "Failed, and in no series", *(f"  {failed_sentence(item)}" for item in history.failures)]
    if history.verdict is not None:
        lines += ["", f"Check: {history.verdict}"]
    return "\n".join(lines)


def history_markdown(history: HistoryRecord) -> str:
    """Return the check's report for GitHub's step summary, with its verdict in the first line."""
    steps = [
        cell(f"- {shown(series.variant)}, {metric_title(series.metric)}: {text}")
        for series in history.series
        for text in series_sentences(series)
    ]
    steps += [cell(f"- failed, and in no series: {failed_sentence(item)}") for item in history.failures]
    rows = [[cell(text) for text in series_row(series)] for series in history.series]
    reasons = [cell(f"- {reason}") for reason in history.reasons]
    parts = [f"### omni history: {history.verdict}", "\n".join(reasons), table(COLUMNS, rows), "\n".join(steps)]
    return "\n\n".join(filter(None, parts)) + "\n"


def check_failure(history: HistoryRecord) -> Note | None:
    """Return the reason why the check did not pass, in one sentence."""
    if history.verdict == "pass":
        return None
    reasons = "; ".join(history.reasons) or "the newest record has no series"
    hint = None
    if history.verdict == "failed":
        hint = "find out why, and measure again"
    elif history.verdict == "regression":
        hint = "if that is intended, ignore it from now on: `omni history check --since DATE`"
    elif history.verdict == "not comparable":
        hint = "nothing to do: a new series has begun; `--allow-difference FIELD` would continue the old one"
    elif history.verdict == "inconclusive":
        hint = "add more records, or longer ones: raise `--time-budget` of `omni bench`, or the runs of another tool"
    return Note(f"{history.verdict}: {reasons}", hint)


def heading(history: HistoryRecord) -> str:
    """Format `40 records in history, 2026-10-01 to 2026-11-20`."""
    kept = {point.record: point.created[:10] for series in history.series for point in series.points}
    kept |= {item.record: item.created[:10] for item in history.failures}
    dates = sorted(kept.values())
    records = count(len(kept), "record")
    return f"{records} in {shown(history.folder)}" + (f", {dates[0]} to {dates[-1]}" if dates else "")


def failed_sentence(failure: HistoryFailure) -> str:
    """Format `2026-11-20, default: 12 of 48 requests failed: ...`."""
    return f"{failure.created[:10]}, {shown(failure.variant)}: {visible(failure.reason, 500)}"


def series_row(series: HistorySeries) -> tuple[str, str, str, str, str]:
    newest = quantity(series.metric, series.points[-1].median)
    shows = "too few records" if series.detectable is None else "too noisy"
    if series.detectable is not None and series.detectable < _NOISY:
        shows = percent(series.detectable)
    return shown(series.variant), metric_title(series.metric), str(len(series.points)), newest, shows


def series_sentences(series: HistorySeries) -> Iterator[str]:
    """Yield why the series begins, if it is not the variant's first one, and its steps."""
    if series.differences:
        yield f"a series of its own since {series.points[0].created[:10]}: {_listed(series.differences)}"
    for number, change in enumerate(series.changes, start=1):
        yield f"({number}) {change_sentence(series, change)}"


def change_sentence(series: HistorySeries, change: HistoryChange) -> str:
    """Format `slower since 2026-11-02: +5.1% [+3.9%, +6.4%], still; commits a1b2..c3d4, seen after 5 records`."""
    bounds = (change.ci95[0] - 1, change.ci95[1] - 1)
    verdict = change.verdict if get_unit(series.metric) in ("s", "per second") else change_word(change)
    still = ", still there" if change.is_open else ", no longer" if change.verdict == "slower" else ""
    after = f"seen after {count(change.found - change.at + 1, 'record')}"
    return (
        f"{verdict} since {series.points[change.at].created[:10]}: {percent_interval(change.ratio - 1, bounds)}{still}"
        f"; {commits(series, change)}; {after}"
    )


def change_word(change: HistoryChange) -> str:
    return "worse" if change.verdict == "slower" else "better"


def commits(series: HistorySeries, change: HistoryChange) -> str:
    """Name the range of commits, or of dates where the records name no commits."""
    if change.same_commit and change.good:
        return f"the machine changed, not the code: commit {shown(change.good[:_COMMIT_DIGITS])} on both sides"
    if change.good and change.bad:
        return f"commits {shown(change.good[:_COMMIT_DIGITS])}..{shown(change.bad[:_COMMIT_DIGITS])}"
    dates = [series.points[number].created[:10] for number in (change.earliest - 1, change.latest)]
    return f"between {dates[0]} and {dates[1]}, of unknown commits"


def _listed(differences: Sequence[Difference]) -> str:
    listed = [f"{shown(item.field)} ({shown(item.a)} before, {shown(item.b)} now)" for item in differences[:3]]
    left = len(differences) - len(listed)
    return ", ".join([*listed, *([f"{count(left, 'more difference')}"] if left else [])])
