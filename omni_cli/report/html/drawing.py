"""Charts as drawings: rows of bars, dots and intervals, panels over a common axis, and trade-offs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec.structs import replace

from omni_cli.report.html.svg import ACCENT, COLOURS, INK, LINE, MUTED, SOFT, Axes, Drawing, Point, Scale, Sheet, draw
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
_WHOLE_STEPS = (1, 2, 5, 10)


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
        axes = Axes(sheet, _MARGIN, 4, _MARGIN, 46)
        axes.y = Scale(height, 0, *axes.ys)
        _scale_rows(axes, chart)
        if chart.margin is not None:
            sheet.band((axes.x(1 / (1 + chart.margin)), axes.x(1 + chart.margin)), axes.ys, SOFT)
        says_so = axes.x.is_log and chart.margin is None
        axes.draw_x(chart.label + (", logarithmic" if says_so else ""))
        if chart.margin is not None:
            axes.rule(1, INK, 1)
        for row, place in zip(chart.rows, places, strict=True):
            if row.heading:
                _write(axes, place - 0.3, row.heading, strong=True)
            _write(axes, place + 0.26, row.name, row.text, strong=row.strong)
            _mark(axes, row, place)

    return draw(name, round(50 + (70 if has_dots else 46) * height), paint)


def _draw_panels(chart: Panels, name: str) -> Drawing:
    """Draw panels below one another with the same axis, each with its name or its unit above it."""

    def paint(sheet: Sheet) -> None:
        low, high = chart.ends
        count = 8 if sheet.is_wide else 4
        for number, panel in enumerate(chart.panels):
            top = number * chart.height + 32
            axes = Axes(sheet, _GUTTER, top, _MARGIN, sheet.height - top - chart.height + 56)
            if chart.numbered:
                room = (high - low or 1) * 0.03
                ticks = _find_ticks(low - room, high + room, count, _WHOLE_STEPS, smallest=1)
                axes.x = Scale(low - room, high + room, *axes.xs, ticks)
            else:
                end = high or 1
                scale = _scale_values(axes.xs, low, high, count=count)
                axes.x = replace(scale, low=low, high=end, ticks=[tick for tick in scale.ticks if low <= tick <= end])
            is_last = panel is chart.panels[-1]
            _paint_panel(axes, panel, chart.label if is_last else "")
            unit = f"({panel.unit}{', logarithmic' if axes.y.is_log else ''})"
            _name_axis(axes, f"{_shorten(panel.name, sheet.width - 110)}  {unit}" if panel.name else unit)

    return draw(name, 20 + chart.height * len(chart.panels), paint)


def _draw_trades(chart: Trades, name: str) -> Drawing:
    """Draw settings by their cost and by another value, with intervals."""
    rows = chart.rows
    bounds = [bound for row in rows for bound in (row.ratio, *(row.bounds or ()))]
    values = [value for row in rows for value in (row.value, *(row.value_bounds or ()))]

    def paint(sheet: Sheet) -> None:
        axes = Axes(sheet, _GUTTER + 12, 30, _MARGIN, 46)
        axes.y = _scale_values(axes.ys, min(values), max(values), count=5)
        axes.x = _scale_ratios(axes.xs, min(bounds), max(bounds), count=9 if sheet.is_wide else 5)
        axes.draw_y()
        axes.draw_x(f"{chart.cost}, logarithmic")
        axes.rule(1, LINE, 1)
        front = sorted((row.ratio, row.value) for row in rows if row.on_front)
        if front:
            sheet.line(_steps(axes, [x for x, _ in front], [y for _, y in front]), MUTED, 1.5)
        for row in rows:
            x, y = axes.x(row.ratio), axes.y(row.value)
            if row.bounds is not None:
                sheet.line([(axes.x(end), y) for end in row.bounds], ACCENT if row.best else MUTED, 2)
            if row.value_bounds is not None:
                sheet.line([(x, axes.y(end)) for end in row.value_bounds], ACCENT, 2)
            sheet.marks([(x, y)], 7, ACCENT if row.best or row.on_front else MUTED)
        _name_front(axes, rows)
        _name_axis(axes, chart.label)

    return draw(name, 330, paint)


def _name_front(axes: Axes, rows: Sequence[Trade]) -> None:
    """Name the best setting and those on the front, as far as their names do not overlap."""
    width, taken = axes.sheet.width, list[tuple[float, float, float]]()
    for row in sorted(rows, key=lambda row: (not row.best, row.ratio)):
        across, down = axes.x(row.ratio), axes.y(row.value)
        # Towards the middle, so that no name leaves the drawing.
        name, at_right = _shorten(row.name, width / 2), across > width / 2
        left = across - 8 - _LETTER * len(name) if at_right else across + 8
        right = left + _LETTER * len(name)
        if (row.best or row.on_front) and not any(
            abs(down - height) < _NAME_HEIGHT and left < end and start < right for height, start, end in taken
        ):
            taken.append((down, left, right))
            anchor = "end" if at_right else "start"
            axes.sheet.text(across + (-8 if at_right else 8), down - 6, name, INK, anchor=anchor)


def _scale_rows(axes: Axes, chart: Rows) -> None:
    """Scale the axis for what the rows have."""
    marks = [value for row in chart.rows for value in (row.centre, *(row.bounds or ())) if value is not None]
    ends = [start + length for row in chart.rows for start, length in row.bars]
    count = 8 if axes.sheet.is_wide else 4
    if chart.margin is not None:
        axes.x = _scale_ratios(axes.xs, min(marks), max(marks), count=9 if axes.sheet.is_wide else 5)
    elif ends:
        end = max(*ends, 1e-9) * 1.01
        axes.x = Scale(0, end, *axes.xs, _find_ticks(0, end, count))
    else:
        dots = [value for row in chart.rows for value in row.dots]
        axes.x = _scale_values(axes.xs, min(dots), max(dots), count=count)


def _mark(axes: Axes, row: ChartRow, place: float) -> None:
    """Draw the bars, the dots and the interval of a row."""
    sheet, colour, y = axes.sheet, COLOURS[row.colour], axes.y(place + (0.84 if row.dots else 0.71))
    half = abs(axes.y(0.16) - axes.y(0))
    if len(row.bars) > 1:
        whole = min(start for start, _ in row.bars), max(start + length for start, length in row.bars)
        sheet.line([(axes.x(end), y) for end in whole], colour, 0.8)
    for start, length in row.bars:
        left, right = axes.x(start), axes.x(start + length)
        # A thin line between neighbours, if there is room for one.
        sheet.band((left, right), (y - half, y + half), colour, gap=0.8 if right - left > _ROOM_FOR_GAP else 0)
    if row.dots:
        # Deterministic offsets: multiples of the golden ratio spread neighbours apart.
        heights = (axes.y(place + 0.42 + 0.28 * (number * 0.618034 % 1)) for number in itertools.count())
        sheet.marks(zip(map(axes.x, keep_some(row.dots)), heights, strict=False), 4.5, MUTED, width=0.5)
    if row.centre is not None:
        sheet.line([(end, y) for end in axes.xs], LINE, 0.5)
        if row.bounds is not None:
            sheet.line([(axes.x(end), y) for end in row.bounds], colour, 3)
        sheet.marks([(axes.x(row.centre), y)], 7, colour)


def _paint_panel(axes: Axes, panel: Panel, label: str) -> None:
    """Draw a panel's spans, its scale and its series."""
    values = [value for series in panel.series for value in series.ys]
    low, high = panel.bounds or _NO_BOUNDS
    axes.y = _scale_values(axes.ys, min(low, *values), max(high, *values), count=4)
    if panel.bounds is not None and panel.bounds[0] == 0:
        axes.y = replace(axes.y, low=0)
    for span in panel.spans:
        solid = span.colour == "soft" and not span.label
        xs = axes.x(span.start), axes.x(span.end)
        axes.sheet.band(xs, axes.ys, COLOURS[span.colour], opacity=1 if solid else 0.25)
        axes.sheet.text(xs[0], axes.ys[1] + 12, span.label, INK, anchor="end")
    axes.draw_y()
    axes.draw_x(label, has_grid=False)
    for series in panel.series:
        if len(series.ys):
            _paint_series(axes, series)


def _paint_series(axes: Axes, series: Series) -> None:
    sheet, colour = axes.sheet, COLOURS[series.colour]
    if series.style == "area":
        steps = _steps(axes, series.xs, [*series.ys, series.ys[-1]])
        sheet.area([(steps[0][0], axes.y(0)), *steps, (steps[-1][0], axes.y(0))], colour)
    elif series.style == "step":
        sheet.line(_steps(axes, series.xs, [*series.ys, *series.ys[-1:]][: len(series.xs)]), colour, 1.6)
    else:
        points = list(zip(map(axes.x, keep_some(series.xs)), map(axes.y, keep_some(series.ys)), strict=True))
        if series.style in _WIDTHS:
            sheet.line(points, colour, _WIDTHS[series.style])
        elif series.style == "rings":
            sheet.marks(points, 13, "none", COLOURS["bad"], 2)
        else:
            sheet.marks(points, 7 if series.style == "diamond" else 4, colour)


def _steps(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
    """Return the corners of steps: each value holds until the next."""
    places = [(axes.x(x), axes.y(y)) for x, y in zip(xs, ys, strict=True)]
    corners = [((x, y), (after, y)) for (x, y), (after, _) in itertools.pairwise(places)]
    return [*itertools.chain(*corners), places[-1]]


_WIDTHS = {"line": 2.0, "thin": 0.8}


def _shorten(text: str, width: float) -> str:
    """Cut a text to `width` pixels."""
    fitting = max(int(width / _LETTER), 4)
    return text if len(text) <= fitting else text[: fitting - 1].rstrip() + "…"


def _scale_values(ends: Point, low: float, high: float, *, count: int) -> Scale:
    """Scale values with at most about `count` ticks, logarithmically if they are far apart."""
    if low > 0 and high / low > _WIDE_RANGE:
        low, high = low * 0.85, high * 1.18
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
        if len(ticks := [tick for tick in ticks if low <= tick <= high]) > count + 2:
            whole = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
            ticks = whole[:: -(-len(whole) // count)]
        return Scale(low, high, *ends, ticks, is_log=True)
    room = (high - low or abs(high) or 1.0) * 0.06
    low, high = max(low - room, 0.0) if low >= 0 else low - room, high + room
    return Scale(low, high, *ends, _find_ticks(low, high, count))


def _find_ticks(
    low: float, high: float, count: int, steps: Sequence[float] = (1, 2, 2.5, 5, 10), smallest: float = 1e-300
) -> list[float]:
    """Return multiples of the smallest step of these, times a power of ten, that makes at most `count` parts."""
    least = max((high - low) / count, smallest)
    size = 10.0 ** math.floor(math.log10(least))
    step = next((size * step for step in steps if size * step >= least), 10 * size)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _scale_ratios(ends: Point, low: float, high: float, *, count: int) -> Scale:
    """Scale logarithmically around 1, with at most about `count` ticks."""
    low, high = min(low, 1.0) / 1.02, max(high, 1.0) * 1.02
    ticks: list[float] = []
    for candidate in _RATIOS:
        distances = [abs(math.log(candidate / tick)) for tick in ticks]
        if low <= candidate <= high and all(gap > math.log(high / low) / (count + 1) for gap in distances):
            ticks.append(candidate)
    return Scale(low, high, *ends, ticks, is_log=True)


def _write(axes: Axes, place: float, left: str, right: str = "", *, strong: bool) -> None:
    """Write a line of text over a row: the name on the left, the values at the right edge."""
    room, y = axes.sheet.width - 16 - len(right) * _LETTER, axes.y(place) + 4
    axes.sheet.text(axes.xs[0], y, _shorten(left, room), INK, strong=strong)
    if right:
        axes.sheet.text(axes.xs[1], y, right, anchor="end")


def _name_axis(axes: Axes, text: str) -> None:
    """Write the name of the y axis above it."""
    axes.sheet.text(0, axes.ys[1] - 8, text, INK, strong=True)
