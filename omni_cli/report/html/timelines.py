"""Drawings over time: what a request waits for, how busy the machine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_cli.report.html.axes import row_label, rows_only, scale_values
from omni_cli.report.html.svg import ACCENT, MUTED, PAPER, SOFT, Drawing, Sheet, draw

_MARGIN = 4


@dataclass(frozen=True)
class Bar:
    """A stretch of time; `parts` are within it, as (start, duration). `heading` begins a group."""

    name: str
    start: float
    duration: float
    text: str
    parts: tuple[tuple[float, float], ...] = ()
    heading: str = ""
    inner: bool = False


def drawn_waterfall(name: str, bars: Sequence[Bar], unit: str) -> Drawing:
    """One row a bar, each where it begins on the way of a request."""
    end = max(bar.start + bar.duration for bar in bars)
    places, place = [], 0.0
    for bar in bars:
        place += 0.62 if bar.heading else 0.0
        places.append(place)
        place += 1.0

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(_MARGIN, 4, _MARGIN, 46)
        rows_only(axes, place)
        scale_values(axes, "x", 0, end, count=9 if sheet.is_wide else 4)
        axes.set_xlim(0, end * 1.01)
        axes.set_xlabel(f"{unit} since the request was sent")
        for bar, y in zip(bars, places, strict=True):
            if bar.heading:
                row_label(axes, sheet, y - 0.3, bar.heading)
            row_label(axes, sheet, y + 0.28, bar.name, bar.text, strong=False)
            axes.barh(
                y + 0.7,
                bar.duration,
                left=bar.start,
                height=0.34,
                color=SOFT if bar.parts else ACCENT if not bar.inner else MUTED,
            )
            for start, duration in bar.parts:
                axes.barh(y + 0.7, duration, left=start, height=0.34, color=ACCENT, edgecolor=PAPER, linewidth=0.6)

    return draw(name, round(50 + 44 * place), paint)
