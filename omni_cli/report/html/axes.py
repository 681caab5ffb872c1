"""Scales, ticks and labels shared by the figures."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from omni_cli.report.html.svg import INK, MUTED, PAPER, Sheet

LETTER = 7.3
"""Width in pixels of an average letter at the figures' size; a little more than most fonts need."""

# Candidates for ticks of a ratio, in order of preference.
_RATIOS = (
    1, 0.5, 2, 0.1, 10, 0.01, 100, 1e-4, 1e4, 1e-8, 1e8, 1e-16, 1e16, 0.2, 5, 0.75, 1.5, 0.25, 4, 0.9, 1.1, 0.8, 1.25,
    3, 0.6, 1.2, 0.95, 1.05, 0.98, 1.02, 0.99, 1.01, 0.85, 1.15, 0.7, 1.3, 1.4,
)  # fmt: skip

WIDE_RANGE = 8
"""Values that differ by more than this factor get a logarithmic scale."""


def shorten(text: str, width: float) -> str:
    """Cut a text to `width` pixels, and remove characters that a drawing must not contain."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    fitting = max(int(width / LETTER), 4)
    return text if len(text) <= fitting else text[: fitting - 1].rstrip() + "…"


def scale_numbers(axes: Axes, low: int, high: int, *, count: int) -> None:
    """Scale the x axis for integers."""
    room = (high - low or 1) * 0.03
    axes.set_xlim(low - room, high + room)
    axes.xaxis.set_major_locator(MaxNLocator(count, steps=[1, 2, 5, 10], integer=True))


def scale_values(axes: Axes, axis: str, low: float, high: float, *, count: int) -> bool:
    """Set limits and at most about `count` ticks on `axis` (`x` or `y`); return True for a logarithmic scale."""
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


def rows_only(axes: Axes, rows: float) -> None:
    """Make the y axis count rows from the top, without ticks."""
    axes.set_ylim(rows, 0)
    axes.yaxis.set_major_locator(NullLocator())


def row_label(axes: Axes, sheet: Sheet, y: float, left: str, right: str = "", *, strong: bool = True) -> None:
    """Write a line of text over a row: the name on the left, the values at the right edge."""
    room = sheet.width - 16 - len(right) * LETTER
    # With a background, because grid lines run behind it.
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
    common: dict[str, Any] = {"va": "center", "transform": axes.get_yaxis_transform(), "bbox": behind}
    axes.text(0, y, shorten(left, room), ha="left", color=INK, weight="bold" if strong else "normal", **common)
    if right:
        axes.text(1, y, right, ha="right", color=MUTED, **common)


def _set(axes: Axes, axis: str, scale: str, limits: tuple[float, float]) -> None:
    if axis == "x":
        axes.set_xscale(scale)
        axes.set_xlim(*limits)
    else:
        axes.set_yscale(scale)
        axes.set_ylim(*limits)
