"""Scales, ticks and labels that the figures share."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from omni_cli.report.html.svg import INK, MUTED, Sheet

LETTER = 6.4
"""Pixels of an average letter at the figures' size; a little more than most fonts need."""

WIDE_RANGE = 8
"""Values that are further apart than this factor get a logarithmic scale."""


def shorten(text: str, width: float) -> str:
    """What fits into `width` pixels."""
    fitting = max(int(width / LETTER), 4)
    return text if len(text) <= fitting else text[: fitting - 1].rstrip() + "…"


def scale_values(axes: Axes, axis: str, low: float, high: float, *, count: int) -> bool:
    """Set limits and at most about `count` ticks on `axis` (`x` or `y`); whether the scale is logarithmic."""
    is_log = low > 0 and high / low > WIDE_RANGE
    target = axes.xaxis if axis == "x" else axes.yaxis
    if is_log:
        _set(axes, axis, "log", (low * 0.85, high * 1.18))
        target.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=count + 2))
    else:
        room = (high - low or abs(high) or 1.0) * 0.06
        _set(axes, axis, "linear", (max(low - room, 0.0) if low >= 0 else low - room, high + room))
        target.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    target.set_minor_locator(NullLocator())
    return is_log


def scale_ratios(axes: Axes, low: float, high: float, *, count: int) -> None:
    """A logarithmic x axis around 1."""
    low, high = min(low, 1.0) / 1.02, max(high, 1.0) * 1.02
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    if high / low < 3:
        axes.xaxis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    else:
        base = next(base for base in (2, 3, 5, 10, 100, 10**4, 10**9, math.inf) if math.log(high / low, base) <= count)
        powers = range(math.ceil(math.log(low, base)), math.floor(math.log(high, base)) + 1)
        axes.xaxis.set_major_locator(FixedLocator([float(base) ** power for power in powers]))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{float(base) ** power:.3g}" for power in powers]))
    axes.xaxis.set_minor_locator(NullLocator())


def rows_only(axes: Axes, rows: float) -> None:
    """A y axis that counts rows from the top and shows nothing."""
    axes.set_ylim(rows, 0)
    axes.yaxis.set_major_locator(NullLocator())


def row_label(axes: Axes, sheet: Sheet, y: float, left: str, right: str = "", *, strong: bool = True) -> None:
    """A line of text over a row: what it is at the left, its values at the right edge."""
    transform = axes.get_yaxis_transform()
    room = sheet.width - 24 - len(right) * LETTER
    weight = "bold" if strong else "normal"
    common = {"va": "center", "transform": transform, "fontsize": 11}
    axes.text(0, y, shorten(left, room), ha="left", color=INK, weight=weight, **common)
    if right:
        axes.text(1, y, right, ha="right", color=MUTED, **common)


def _set(axes: Axes, axis: str, scale: str, limits: tuple[float, float]) -> None:
    if axis == "x":
        axes.set_xscale(scale)
        axes.set_xlim(*limits)
    else:
        axes.set_yscale(scale)
        axes.set_ylim(*limits)
