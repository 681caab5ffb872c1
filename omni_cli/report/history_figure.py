"""A series of records as a figure of plain text: a dot per record, the level between steps, and where these lie."""

from __future__ import annotations

import itertools
import shutil

import numpy as np

from omni_cli.report.bench_units import quantity
from omni_cli.results import HistorySeries

_HEIGHT = 8
_LABEL = 12
_BEYOND = 5.0  # spreads around the levels that are drawn; what lies outside is marked at the edge


def history_figure(series: HistorySeries) -> list[str]:
    """Draw the newest records that fit the terminal; steps have the numbers of their sentences below."""
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
    lines = [f"  {names.get(number, ''):>{_LABEL}} │{''.join(row)}".rstrip() for number, row in enumerate(rows)]
    return [*lines, " " * (_LABEL + 4) + _marks(series, skipped)] if series.changes else lines


def _marks(series: HistorySeries, skipped: int) -> str:
    """Mark the span of each step by dots, and its place by its number."""
    marks = [" "] * len(series.points)
    for number, change in enumerate(series.changes, start=1):
        marks[change.earliest : change.latest + 1] = "·" * (change.latest + 1 - change.earliest)
        marks[change.at] = str(number)[-1]
    return "".join(marks[skipped:]).rstrip()
