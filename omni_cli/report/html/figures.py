"""Drawings of measured values: distributions, sequences, and ratios of variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes

from omni_cli.report.html.axes import LETTER, row_label, rows_only, scale_numbers, scale_ratios, scale_values, shorten
from omni_cli.report.html.svg import ACCENT, BAD, INK, LINE, MUTED, PAPER, SOFT, Drawing, Sheet, draw

T = TypeVar("T")

MAX_DOTS = 800
"""If a variant has more values than this, only every second, third, ... is drawn."""

_MARGIN = 4
_GUTTER = 48
_NAME_HEIGHT = 16  # pixels
_PANEL = 140


@dataclass(frozen=True)
class Spread:
    """Values of one variant in the axis' unit, and their median with interval, also as text."""

    name: str
    values: Sequence[float]
    median: float
    ci95: tuple[float, float] | None
    text: str


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval; `heading` is a line above it that begins a new group."""

    name: str
    ratio: float
    ci95: tuple[float, float] | None
    text: str
    heading: str = ""
    decided: bool = True


@dataclass(frozen=True)
class Amount:
    """A bar with its length and its text; `heading` as for an interval."""

    name: str
    value: float
    text: str
    heading: str = ""
    accent: bool = True


@dataclass(frozen=True)
class Points:
    """A step by its number: all its values, their median, and whether it is marked."""

    number: int
    values: Sequence[float]
    median: float
    marked: bool = False


@dataclass(frozen=True)
class Level:
    """The level of the records `first` to `last`; `span` are the records between which the step to it lies."""

    first: int
    last: int
    value: float
    span: tuple[int, int] | None = None
    is_worse: bool = False


@dataclass(frozen=True)
class Trade:
    """A setting: its cost over that of another with an interval, and another value that matters."""

    name: str
    ratio: float
    ci95: tuple[float, float] | None
    value: float
    on_front: bool
    best: bool
    value_ci95: tuple[float, float] | None = None


def drawn_spread(name: str, rows: Sequence[Spread], unit: str) -> Drawing:
    """Draw one strip of dots per row, with the median and its interval below."""
    finite = [value for row in rows for value in row.values]

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        rows_only(axes, len(rows))
        is_log = scale_values(axes, "x", min(finite), max(finite), count=8 if sheet.is_wide else 4)
        axes.set_xlabel(f"{unit}, logarithmic" if is_log else unit)
        for number, row in enumerate(rows):
            row_label(axes, sheet, number + 0.2, row.name, row.text)
            values = thinned(row.values)
            # Deterministic offsets: multiples of the golden ratio spread neighbours apart.
            heights = number + 0.42 + 0.28 * np.modf(np.arange(len(values)) * 0.618034)[0]
            axes.plot(values, heights, "o", markersize=4.5, color=MUTED, markeredgewidth=0.5, markeredgecolor=PAPER)
            _whisker(axes, number + 0.84, row.median, row.ci95)

    return draw(name, 50 + 70 * len(rows), paint)


def drawn_runs(name: str, rows: Sequence[Spread], unit: str) -> Drawing:
    """Draw one panel per variant with its runs in the order in which they ran, all on the same scale."""
    finite = [value for row in rows for value in row.values]
    longest = max(len(row.values) for row in rows)

    def paint(sheet: Sheet) -> None:
        for number, row in enumerate(rows):
            top = number * _PANEL + 30
            axes = sheet.axes(_GUTTER, top, _MARGIN, sheet.height - top - _PANEL + 54)
            is_log = scale_values(axes, "y", min(finite), max(finite), count=3)
            scale_numbers(axes, 1, longest, count=8 if sheet.is_wide else 4)
            axes.grid(True, axis="y")
            axes.grid(False, axis="x")
            values = thinned(row.values)
            order = [1 + index * (-(-len(row.values) // MAX_DOTS)) for index in range(len(values))]
            axes.plot(order, values, "-", color=MUTED, linewidth=0.7)
            axes.plot(order, values, "o", color=MUTED, markersize=4, markeredgewidth=0)
            axes.axhline(row.median, color=ACCENT, linewidth=2)
            heading = f"{shorten(row.name, sheet.width - 110)}  ({unit}{', logarithmic' if is_log else ''})"
            axes.annotate(
                heading, (0, 1), (-_GUTTER, 8), "axes fraction", textcoords="offset points", color=INK, weight="bold"
            )
        axes.set_xlabel("run")

    return draw(name, 20 + _PANEL * len(rows), paint)


def drawn_intervals(name: str, rows: Sequence[Interval], margin: float) -> Drawing:
    """Draw a forest plot: ratios on a logarithmic axis; the band of no difference is shaded."""
    bounds = [bound for row in rows for bound in (row.ratio, *(row.ci95 or ()))]
    places, height = row_places([row.heading for row in rows])

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        rows_only(axes, height)
        scale_ratios(axes, min(bounds), max(bounds), count=9 if sheet.is_wide else 5)
        axes.axvspan(1 / (1 + margin), 1 + margin, color=SOFT, linewidth=0, zorder=0)
        axes.axvline(1, color=INK, linewidth=1, zorder=1)
        axes.set_xlabel("ratio, logarithmic; 1 is no difference")
        for row, place in zip(rows, places, strict=True):
            if row.heading:
                row_label(axes, sheet, place - 0.3, row.heading)
            row_label(axes, sheet, place + 0.28, row.name, row.text, strong=False)
            _whisker(axes, place + 0.72, row.ratio, row.ci95, colour=ACCENT if row.decided else MUTED)

    return draw(name, round(50 + 48 * height), paint)


def drawn_amounts(name: str, rows: Sequence[Amount], unit: str) -> Drawing:
    """Draw bars from 0."""
    places, height = row_places([row.heading for row in rows])

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        rows_only(axes, height)
        scale_values(axes, "x", 0, max(max(row.value for row in rows), 1e-9), count=8 if sheet.is_wide else 4)
        axes.set_xlim(left=0)
        axes.set_xlabel(unit)
        for row, place in zip(rows, places, strict=True):
            if row.heading:
                row_label(axes, sheet, place - 0.3, row.heading)
            row_label(axes, sheet, place + 0.28, row.name, row.text, strong=False)
            axes.barh(place + 0.7, row.value, height=0.3, color=ACCENT if row.accent else MUTED)

    return draw(name, round(50 + 46 * height), paint)


def drawn_points(name: str, rows: Sequence[Points], unit: str, label: str) -> Drawing:
    """Draw a line through the medians, dots for the values, and rings around marked steps."""
    everything = [value for row in rows for value in (*row.values, row.median)]

    def paint(sheet: Sheet) -> None:
        axes = _numbered_axes(sheet, everything, (rows[0].number, rows[-1].number), unit, label)
        dots = [(row.number, value) for row in rows for value in row.values]
        if dots:
            axes.plot(*zip(*thinned(dots), strict=True), "o", color=MUTED, markersize=3.5, markeredgewidth=0)
        axes.plot([row.number for row in rows], [row.median for row in rows], "-", color=ACCENT, linewidth=2)
        ringed = [(row.number, row.median) for row in rows if row.marked]
        if ringed:
            axes.plot(
                *zip(*ringed, strict=True), "o", color="none", markersize=13, markeredgecolor=BAD, markeredgewidth=2
            )

    return draw(name, 230, paint)


def drawn_history(name: str, rows: Sequence[Spread], levels: Sequence[Level], unit: str) -> Drawing:
    """Draw records with their intervals, the levels between steps, and the span in which each step lies."""
    bounds = [bound for row in rows for bound in (row.median, *(row.ci95 or ()))]

    def paint(sheet: Sheet) -> None:
        axes = _numbered_axes(sheet, bounds, (1, len(rows)), unit, "record")
        for number, row in enumerate(rows, start=1):
            if row.ci95 is not None:
                axes.plot((number, number), row.ci95, "-", color=MUTED, linewidth=1)
            axes.plot((number,), (row.median,), "o", color=MUTED, markersize=4, markeredgewidth=0)
        for step, level in enumerate(levels):
            axes.plot((level.first, level.last), (level.value, level.value), "-", color=ACCENT, linewidth=2)
            if level.span is not None:
                axes.axvspan(*level.span, color=BAD if level.is_worse else SOFT, alpha=0.3, linewidth=0, zorder=0)
                top = axes.get_xaxis_transform()
                axes.text(level.span[0], 1.0, f"({step})", color=INK, transform=top, ha="right", va="top")

    return draw(name, 230, paint)


def drawn_trade(
    name: str, rows: Sequence[Trade], label: str, cost: str = "cost over that of the best setting"
) -> Drawing:
    """Draw settings by their cost and by another value, with intervals; a line joins those on the front."""
    bounds = [bound for row in rows for bound in (row.ratio, *(row.ci95 or ()))]
    values = [value for row in rows for value in (row.value, *(row.value_ci95 or ()))]

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_GUTTER + 12, 30, _MARGIN, 46)
        scale_values(axes, "y", min(values), max(values), count=5)
        scale_ratios(axes, min(bounds), max(bounds), count=9 if sheet.is_wide else 5)
        axes.grid(True, axis="y")
        axes.axvline(1, color=LINE, linewidth=1, zorder=0)
        front = sorted((row.ratio, row.value) for row in rows if row.on_front)
        if front:
            axes.plot(*zip(*front, strict=True), "-", color=MUTED, linewidth=1.5, drawstyle="steps-post")
        for row in rows:
            if row.ci95 is not None:
                axes.plot(row.ci95, (row.value, row.value), "-", color=ACCENT if row.best else MUTED, linewidth=2)
            if row.value_ci95 is not None:
                axes.plot((row.ratio, row.ratio), row.value_ci95, "-", color=ACCENT, linewidth=2)
            colour = ACCENT if row.best or row.on_front else MUTED
            axes.plot((row.ratio,), (row.value,), "D", color=colour, markersize=7, markeredgecolor=PAPER)
        _name_front(axes, sheet, rows)
        axes.annotate(
            label, (0, 1), (-_GUTTER - 12, 8), "axes fraction", textcoords="offset points", color=INK, weight="bold"
        )
        axes.set_xlabel(f"{cost}, logarithmic")

    return draw(name, 330, paint)


def _name_front(axes: Axes, sheet: Sheet, rows: Sequence[Trade]) -> None:
    """Name the best setting and those on the front, as far as their names do not overlap."""
    taken: list[tuple[float, float, float]] = []
    for row in sorted(rows, key=lambda row: (not row.best, row.ratio)):
        across, up = axes.transData.transform((row.ratio, row.value)).tolist()
        name, at_right = shorten(row.name, sheet.width / 2), across > sheet.width / 2
        left = across - 8 - LETTER * len(name) if at_right else across + 8
        right = left + LETTER * len(name)
        if not (row.best or row.on_front) or any(
            abs(up - height) < _NAME_HEIGHT and left < end and start < right for height, start, end in taken
        ):
            continue
        taken.append((up, left, right))
        # Towards the middle, so that no name leaves the drawing.
        side, offset = ("right", (-8, 6)) if at_right else ("left", (8, 6))
        axes.annotate(name, (row.ratio, row.value), offset, textcoords="offset points", color=INK, ha=side)


def thinned(values: Sequence[T]) -> Sequence[T]:
    """Return at most `MAX_DOTS` of the values, evenly spaced."""
    return values[:: -(-len(values) // MAX_DOTS)] if values else values


def _numbered_axes(sheet: Sheet, values: Sequence[float], ends: tuple[int, int], unit: str, label: str) -> Axes:
    """Create axes for values by number, from the first to the last."""
    axes = sheet.axes(_GUTTER, 30, _MARGIN, 46)
    is_log = scale_values(axes, "y", min(values), max(values), count=4)
    scale_numbers(axes, *ends, count=8 if sheet.is_wide else 4)
    axes.grid(True, axis="y")
    axes.grid(False, axis="x")
    heading = f"({unit}{', logarithmic' if is_log else ''})"
    axes.annotate(heading, (0, 1), (-_GUTTER, 8), "axes fraction", textcoords="offset points", color=MUTED)
    axes.set_xlabel(label)
    return axes


def row_places(headings: Sequence[str]) -> tuple[list[float], float]:
    """Return the positions of rows, where each heading takes a part of a row, and the number of rows in total."""
    places, place = [], 0.0
    for heading in headings:
        place += 0.62 if heading else 0.0
        places.append(place)
        place += 1.0
    return places, place


def _whisker(axes: Axes, y: float, centre: float, bounds: tuple[float, float] | None, colour: str = ACCENT) -> None:
    if bounds is not None:
        axes.plot(bounds, (y, y), "-", color=colour, linewidth=3, solid_capstyle="round")
    axes.plot((centre,), (y,), "D", color=colour, markersize=7, markeredgecolor=PAPER, markeredgewidth=1.2)
    axes.axhline(y, color=LINE, linewidth=0.5, zorder=0)
