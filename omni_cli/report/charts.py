"""Charts as values: what is drawn, in the axis' unit. `html.drawing` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Colour = Literal["ink", "muted", "line", "accent", "soft", "bad"]
Bounds = tuple[float, float] | None

MAX_DOTS = 800
"""If a series has more values than this, only every second, third, ... is drawn."""


@dataclass(frozen=True)
class ChartRow:
    """A named row of a chart: `bars` as (start, length), `dots`, or a `centre` with its bounds; `text` are its values.

    `heading` is a line above it that begins a group.
    """

    name: str
    text: str = ""
    heading: str = ""
    bars: tuple[tuple[float, float], ...] = ()
    dots: Sequence[float] = ()
    centre: float | None = None
    bounds: Bounds = None
    colour: Colour = "accent"
    strong: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows on one axis: of bars from 0, of values, or with a `margin` of ratios around 1, where it is shaded."""

    rows: tuple[ChartRow, ...]
    label: str
    margin: float | None = None


@dataclass(frozen=True)
class Series:
    """Values over a panel's axis. The xs of a `step` and of an `area` are edges, one more than there are values."""

    style: Literal["line", "thin", "dots", "rings", "diamond", "step", "area"]
    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour = "muted"


@dataclass(frozen=True)
class Shade:
    """A shaded stretch of the axis."""

    start: float
    end: float
    colour: Colour = "bad"
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """Series on one scale, which reaches over `bounds` at least."""

    name: str
    unit: str
    series: tuple[Series, ...]
    bounds: Bounds = None
    spans: tuple[Shade, ...] = ()


@dataclass(frozen=True)
class Panels:
    """Panels below one another with the same axis, over `ends`; `numbered` is an axis of integers."""

    panels: tuple[Panel, ...]
    label: str
    ends: tuple[float, float]
    numbered: bool = True
    height: int = 145


@dataclass(frozen=True)
class Trade:
    """A setting: its cost over that of another, and another value that matters, both with bounds."""

    name: str
    ratio: float
    bounds: Bounds
    value: float
    on_front: bool = False
    best: bool = False
    value_bounds: Bounds = None


@dataclass(frozen=True)
class Trades:
    """Settings by their cost and by another value; a line joins those on the front."""

    rows: tuple[Trade, ...]
    label: str
    cost: str = "cost over that of the best setting"


Chart = Rows | Panels | Trades


def keep_some(values: Sequence[float]) -> Sequence[float]:
    """Return at most `MAX_DOTS` of the values, evenly spaced."""
    return values[:: -(-len(values) // MAX_DOTS)] if values else values
