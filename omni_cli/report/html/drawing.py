"""Charts as drawings: rows of bars, dots and intervals, panels over a common axis, and trade-offs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from omni_cli.report.html.svg import ACCENT, COLOURS, INK, LINE, MUTED, PAPER, SOFT, Drawing, Sheet, draw
from omni_cli.report.view import Chart, ChartRow, Panel, Panels, Rows, Series, Trade, Trades, keep_some

_LETTER = 7.3
"""Width in pixels of an average letter at the figures' size; a little more than most fonts need."""

# Candidates for ticks of a ratio, in order of preference.
_RATIOS = (
    1, 0.5, 2, 0.1, 10, 0.01, 100, 1e-4, 1e4, 1e-8, 1e8, 1e-16, 1e16, 0.2, 5, 0.75, 1.5, 0.25, 4, 0.9, 1.1, 0.8, 1.25,
    3, 0.6, 1.2, 0.95, 1.05, 0.98, 1.02, 0.99, 1.01, 0.85, 1.15, 0.7, 1.3, 1.4,
)  # fmt: skip

_WIDE_RANGE = 8
"""Values that differ by more than this factor get a logarithmic scale."""
_MARGIN, _GUTTER = 4, 48
_NAME_HEIGHT = 16  # pixels
_ROOM_FOR_GAP = 4
_NO_BOUNDS = (math.inf, -math.inf)


def draw_chart(chart: Chart, name: str) -> Drawing:
    """Draw a chart; `name` begins the ids of its elements."""
    match chart:
        case Rows():
            return _draw_rows(chart, name)
        case Panels():
            return _draw_panels(chart, name)
        case Trades():
            return _draw_trades(chart, name)


def _draw_rows(chart: Rows, name: str) -> Drawing:
    """Draw a line of text per row, and below it its mark. A group's heading takes a part of a row."""
    places, height = list[float](), 0.0
    for row in chart.rows:
        height += 0.62 if row.heading else 0.0
        places.append(height)
        height += 1.0
    has_dots = any(row.dots for row in chart.rows)

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        axes.set_ylim(height, 0)
        axes.yaxis.set_major_locator(NullLocator())
        axes.set_xlabel(chart.label + (", logarithmic" if _scale_rows(axes, sheet, chart) else ""))
        for row, place in zip(chart.rows, places, strict=True):
            if row.heading:
                _write(axes, sheet, place - 0.3, row.heading, strong=True)
            _write(axes, sheet, place + 0.26, row.name, row.text, strong=row.strong)
            _mark(axes, sheet, row, place)

    return draw(name, round(50 + (70 if has_dots else 46) * height), paint)


def _draw_panels(chart: Panels, name: str) -> Drawing:
    """Draw panels below one another with the same axis, each with its name or its unit above it."""

    def paint(sheet: Sheet) -> None:
        for number, panel in enumerate(chart.panels):
            top = number * chart.height + 32
            axes = sheet.axes(_GUTTER, top, _MARGIN, sheet.height - top - chart.height + 56)
            is_log = _paint_panel(axes, panel)
            low, high = chart.ends
            count = 8 if sheet.is_wide else 4
            if chart.numbered:
                room = (high - low or 1) * 0.03
                axes.set_xlim(low - room, high + room)
                axes.xaxis.set_major_locator(MaxNLocator(count, steps=[1, 2, 5, 10], integer=True))
            else:
                _scale_values(axes, "x", low, high, count=count)
                axes.set_xlim(low, high or 1)
            unit = f"({panel.unit}{', logarithmic' if is_log else ''})"
            _name_axis(axes, f"{_shorten(panel.name, sheet.width - 110)}  {unit}" if panel.name else unit)
        axes.set_xlabel(chart.label)

    return draw(name, 20 + chart.height * len(chart.panels), paint)


def _draw_trades(chart: Trades, name: str) -> Drawing:
    """Draw settings by their cost and by another value, with intervals."""
    rows = chart.rows
    bounds = [bound for row in rows for bound in (row.ratio, *(row.bounds or ()))]
    values = [value for row in rows for value in (row.value, *(row.value_bounds or ()))]

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_GUTTER + 12, 30, _MARGIN, 46)
        _scale_values(axes, "y", min(values), max(values), count=5)
        _scale_ratios(axes, min(bounds), max(bounds), count=9 if sheet.is_wide else 5)
        axes.grid(True, axis="y")
        axes.axvline(1, color=LINE, linewidth=1, zorder=0)
        front = sorted((row.ratio, row.value) for row in rows if row.on_front)
        if front:
            axes.plot(*zip(*front, strict=True), "-", color=MUTED, linewidth=1.5, drawstyle="steps-post")
        for row in rows:
            if row.bounds is not None:
                axes.plot(row.bounds, (row.value, row.value), "-", color=ACCENT if row.best else MUTED, linewidth=2)
            if row.value_bounds is not None:
                axes.plot((row.ratio, row.ratio), row.value_bounds, "-", color=ACCENT, linewidth=2)
            colour = ACCENT if row.best or row.on_front else MUTED
            axes.plot((row.ratio,), (row.value,), "D", color=colour, markersize=7, markeredgecolor=PAPER)
        _name_front(axes, sheet, rows)
        _name_axis(axes, chart.label, left=_GUTTER + 12)
        axes.set_xlabel(f"{chart.cost}, logarithmic")

    return draw(name, 330, paint)


def _name_front(axes: Axes, sheet: Sheet, rows: Sequence[Trade]) -> None:
    """Name the best setting and those on the front, as far as their names do not overlap."""
    taken: list[tuple[float, float, float]] = []
    for row in sorted(rows, key=lambda row: (not row.best, row.ratio)):
        across, up = axes.transData.transform((row.ratio, row.value)).tolist()
        name, at_right = _shorten(row.name, sheet.width / 2), across > sheet.width / 2
        left = across - 8 - _LETTER * len(name) if at_right else across + 8
        right = left + _LETTER * len(name)
        if not (row.best or row.on_front) or any(
            abs(up - height) < _NAME_HEIGHT and left < end and start < right for height, start, end in taken
        ):
            continue
        taken.append((up, left, right))
        # Towards the middle, so that no name leaves the drawing.
        side, offset = ("right", (-8, 6)) if at_right else ("left", (8, 6))
        axes.annotate(name, (row.ratio, row.value), offset, textcoords="offset points", color=INK, ha=side)


def _scale_rows(axes: Axes, sheet: Sheet, chart: Rows) -> bool:
    """Scale the axis for what the rows have; return True if it is logarithmic and its label does not say so."""
    marks = [value for row in chart.rows for value in (row.centre, *(row.bounds or ())) if value is not None]
    if chart.margin is not None:
        _scale_ratios(axes, min(marks), max(marks), count=9 if sheet.is_wide else 5)
        axes.axvspan(1 / (1 + chart.margin), 1 + chart.margin, color=SOFT, linewidth=0, zorder=0)
        axes.axvline(1, color=INK, linewidth=1, zorder=1)
        return False
    ends = [start + length for row in chart.rows for start, length in row.bars]
    if ends:
        _scale_values(axes, "x", 0, max(*ends, 1e-9), count=8 if sheet.is_wide else 4)
        axes.set_xlim(0, max(*ends, 1e-9) * 1.01)
        return False
    dots = [value for row in chart.rows for value in row.dots]
    return _scale_values(axes, "x", min(dots), max(dots), count=8 if sheet.is_wide else 4)


def _mark(axes: Axes, sheet: Sheet, row: ChartRow, place: float) -> None:
    """Draw the bars, the dots and the interval of a row."""
    colour, y = COLOURS[row.colour], place + (0.84 if row.dots else 0.71)
    if len(row.bars) > 1:
        whole = min(start for start, _ in row.bars), max(start + length for start, length in row.bars)
        axes.plot(whole, (y, y), "-", color=colour, linewidth=0.8)
    for start, length in row.bars:
        # A thin line between neighbours, if there is room for one.
        gap = 0.8 if length / axes.get_xlim()[1] * sheet.width > _ROOM_FOR_GAP else 0
        axes.barh(y, length, left=start, height=0.32, color=colour, edgecolor=PAPER, linewidth=gap)
    if row.dots:
        values = keep_some(row.dots)
        # Deterministic offsets: multiples of the golden ratio spread neighbours apart.
        heights = place + 0.42 + 0.28 * np.modf(np.arange(len(values)) * 0.618034)[0]
        axes.plot(values, heights, "o", markersize=4.5, color=MUTED, markeredgewidth=0.5, markeredgecolor=PAPER)
    if row.centre is not None:
        if row.bounds is not None:
            axes.plot(row.bounds, (y, y), "-", color=colour, linewidth=3, solid_capstyle="round")
        axes.plot((row.centre,), (y,), "D", color=colour, markersize=7, markeredgecolor=PAPER, markeredgewidth=1.2)
        axes.axhline(y, color=LINE, linewidth=0.5, zorder=0)


def _paint_panel(axes: Axes, panel: Panel) -> bool:
    """Draw a panel's series and spans; return True for a logarithmic scale."""
    values = [value for series in panel.series for value in series.ys]
    low, high = panel.bounds or _NO_BOUNDS
    is_log = _scale_values(axes, "y", min(low, *values), max(high, *values), count=4)
    if panel.bounds is not None and panel.bounds[0] == 0:
        axes.set_ylim(bottom=0)
    axes.grid(True, axis="y")
    axes.grid(False, axis="x")
    for span in panel.spans:
        solid = span.colour == "soft" and not span.label
        axes.axvspan(
            span.start, span.end, color=COLOURS[span.colour], alpha=1 if solid else 0.25, linewidth=0, zorder=0
        )
        top = axes.get_xaxis_transform()
        axes.text(span.start, 1.0, span.label, color=INK, transform=top, ha="right", va="top")
    for series in panel.series:
        if len(series.ys):
            _paint_series(axes, series)
    return is_log


def _paint_series(axes: Axes, series: Series) -> None:
    colour = COLOURS[series.colour]
    if series.style == "area":
        axes.stairs(series.ys, series.xs, fill=True, color=colour, baseline=0)
    elif series.style == "step":
        ys = [*series.ys, *series.ys[-1:]][: len(series.xs)]
        axes.step(series.xs, ys, where="post", color=colour, linewidth=1.6)
    else:
        form, look = _LOOKS[series.style]
        edges = {"rings": ("none", COLOURS["bad"]), "diamond": (colour, PAPER)}.get(series.style, (colour, colour))
        axes.plot(keep_some(series.xs), keep_some(series.ys), form, color=edges[0], markeredgecolor=edges[1], **look)


_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "line": ("-", {"linewidth": 2}),
    "thin": ("-", {"linewidth": 0.8}),
    "dots": ("o", {"markersize": 4, "markeredgewidth": 0}),
    "rings": ("o", {"markersize": 13, "markeredgewidth": 2}),
    "diamond": ("D", {"markersize": 7, "markeredgewidth": 1.2}),
}


def _shorten(text: str, width: float) -> str:
    """Cut a text to `width` pixels, and remove characters that a drawing must not contain."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    fitting = max(int(width / _LETTER), 4)
    return text if len(text) <= fitting else text[: fitting - 1].rstrip() + "…"


def _scale_values(axes: Axes, axis: str, low: float, high: float, *, count: int) -> bool:
    """Set limits and at most about `count` ticks on `axis` (`x` or `y`); return True for a logarithmic scale."""
    is_log = low > 0 and high / low > _WIDE_RANGE
    target = axes.xaxis if axis == "x" else axes.yaxis
    if is_log:
        axes.set(**{f"{axis}scale": "log", f"{axis}lim": (low * 0.85, high * 1.18)})
        target.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=count + 2))
    else:
        room = (high - low or abs(high) or 1.0) * 0.06
        axes.set(**{f"{axis}lim": (max(low - room, 0.0) if low >= 0 else low - room, high + room)})
        target.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    target.set_minor_locator(NullLocator())
    return is_log


def _scale_ratios(axes: Axes, low: float, high: float, *, count: int) -> None:
    """Scale the x axis logarithmically around 1, with at most about `count` ticks."""
    low, high = min(low, 1.0) / 1.02, max(high, 1.0) * 1.02
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks: list[float] = []
    for candidate in _RATIOS:
        distances = [abs(math.log(candidate / tick)) for tick in ticks]
        if low <= candidate <= high and all(gap > math.log(high / low) / (count + 1) for gap in distances):
            ticks.append(candidate)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _write(axes: Axes, sheet: Sheet, y: float, left: str, right: str = "", *, strong: bool) -> None:
    """Write a line of text over a row: the name on the left, the values at the right edge."""
    room = sheet.width - 16 - len(right) * _LETTER
    # With a background, because grid lines run behind it.
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
    common: dict[str, Any] = {"va": "center", "transform": axes.get_yaxis_transform(), "bbox": behind}
    axes.text(0, y, _shorten(left, room), ha="left", color=INK, weight="bold" if strong else "normal", **common)
    if right:
        axes.text(1, y, right, ha="right", color=MUTED, **common)


def _name_axis(axes: Axes, text: str, left: float = _GUTTER) -> None:
    """Write the name of the y axis above it."""
    axes.annotate(text, (0, 1), (-left, 8), "axes fraction", textcoords="offset points", color=INK, weight="bold")
