"""Drawings over time: the parts of a request, and the load of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from omni_cli.report.html.axes import row_label, rows_only, scale_values, shorten
from omni_cli.report.html.figures import row_places
from omni_cli.report.html.svg import ACCENT, BAD, INK, MUTED, PAPER, Drawing, Sheet, draw

_MARGIN = 4
_GUTTER = 48
_PANEL = 150
_ROOM_FOR_GAP = 4


@dataclass(frozen=True)
class Bar:
    """A row of `parts` as (start, duration). `heading` begins a group; `strong` marks its total."""

    name: str
    start: float
    duration: float
    text: str
    parts: tuple[tuple[float, float], ...] = ()
    heading: str = ""
    inner: bool = False
    strong: bool = False


def drawn_waterfall(name: str, bars: Sequence[Bar], unit: str) -> Drawing:
    """Draw one row per bar, each at its start within a request."""
    end = max(bar.start + bar.duration for bar in bars)
    places, height = row_places([bar.heading for bar in bars])

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        rows_only(axes, height)
        scale_values(axes, "x", 0, end, count=9 if sheet.is_wide else 4)
        axes.set_xlim(0, end * 1.01)
        axes.set_xlabel(f"{unit} since the request was sent")
        for bar, y in zip(bars, places, strict=True):
            if bar.heading:
                row_label(axes, sheet, y - 0.3, bar.heading)
            row_label(axes, sheet, y + 0.28, bar.name, bar.text, strong=bar.strong)
            colour = MUTED if bar.inner else ACCENT
            axes.plot((bar.start, bar.start + bar.duration), (y + 0.7,) * 2, "-", color=colour, linewidth=0.8)
            for start, duration in bar.parts or ((bar.start, bar.duration),):
                # A thin line between neighbours, if there is room for one.
                gap = 0.8 if duration / end * sheet.width > _ROOM_FOR_GAP else 0
                axes.barh(y + 0.7, duration, left=start, height=0.34, color=colour, edgecolor=PAPER, linewidth=gap)

    return draw(name, round(50 + 44 * height), paint)


@dataclass(frozen=True)
class Band:
    """Values over time; `filled` down to 0 or to the previous band."""

    name: str
    values: Sequence[float]
    colour: str
    filled: bool = True


@dataclass(frozen=True)
class Panel:
    """Bands on one scale, from 0 to at least `top`.

    `marked` are intervals of time to shade with `shade`; `point` is a (time, value) to mark.
    """

    name: str
    unit: str
    bands: tuple[Band, ...]
    top: float
    marked: tuple[tuple[float, float], ...] = ()
    shade: str = BAD
    point: tuple[float, float] | None = None


def drawn_panels(name: str, edges: Sequence[float], panels: Sequence[Panel], label: str) -> Drawing:
    """Draw panels below one another with the same time axis; `edges` are the values' starts and the last end."""

    def paint(sheet: Sheet) -> None:
        for number, panel in enumerate(panels):
            top = number * _PANEL + 34
            axes = sheet.axes(_GUTTER, top, _MARGIN, sheet.height - top - _PANEL + 58)
            _paint_panel(axes, panel, edges)
            scale_values(axes, "x", 0, edges[-1], count=8 if sheet.is_wide else 4)
            axes.set_xlim(0, edges[-1] or 1)
            heading = f"{shorten(panel.name, sheet.width - 110)}  ({panel.unit})"
            axes.annotate(
                heading, (0, 1), (-_GUTTER, 10), "axes fraction", textcoords="offset points", color=INK, weight="bold"
            )
        axes.set_xlabel(label)

    return draw(name, 20 + _PANEL * len(panels), paint)


def _paint_panel(axes: Axes, panel: Panel, edges: Sequence[float]) -> None:
    highest = max((value for band in panel.bands for value in band.values), default=0.0)
    scale_values(axes, "y", 0, max(panel.top, highest), count=3)
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y")
    axes.grid(False, axis="x")
    for start, end in panel.marked:
        axes.axvspan(start, end, color=panel.shade, alpha=0.2 if panel.shade == BAD else 1, linewidth=0)
    for band in panel.bands:
        if band.filled:
            axes.stairs(band.values, edges, fill=True, color=band.colour, baseline=0)
        else:
            axes.step(edges, [*band.values, *band.values[-1:]], where="post", color=band.colour, linewidth=1.6)
    if panel.point is not None:
        axes.plot(*panel.point, "D", color=ACCENT, markersize=7, markeredgecolor=PAPER, markeredgewidth=1.2)
