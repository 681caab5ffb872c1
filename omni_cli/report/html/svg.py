"""Inline SVG: lines, areas, marks and texts, coloured by the page's style sheet.

Each figure is drawn in two widths, because letters that are scaled with a drawing are too small on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from xml.etree import ElementTree

from markupsafe import Markup
from msgspec import Struct

WIDE, NARROW = 880, 358
"""Widths in pixels: a column on a desktop, and a phone's 390 pixels without the margins."""

COLOURS = {name: f"var(--{name})" for name in ("ink", "muted", "line", "accent", "soft", "paper", "bad")}
INK, MUTED, LINE, ACCENT, SOFT, PAPER, BAD = COLOURS.values()
Point = tuple[float, float]


class Drawing(Struct, frozen=True):
    """The same figure for wide and for narrow screens, as `<svg>` elements."""

    wide: Markup
    narrow: Markup


class Scale(Struct, frozen=True):
    """Places values between two pixels, and those outside at the nearer one; `ticks` are named."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.start + min(max((value - low) / (high - low or 1), 0), 1) * (self.end - self.start)

    @property
    def labels(self) -> list[str]:
        """Name the ticks by four digits, or by as many as they have."""
        for digits in range(4, 18):
            labels = [f"{tick:.{digits}g}" for tick in self.ticks]
            if all(math.isclose(float(label), tick) for label, tick in zip(labels, self.ticks, strict=True)):
                break
        return labels


class Sheet:
    """A drawing; ids of its elements begin with `name`."""

    def __init__(self, name: str, width: int, height: int) -> None:
        self.name, self.width, self.height = name, width, height
        self.root = ElementTree.Element("svg", viewBox=f"0 0 {width} {height}", width=str(width), height=str(height))
        self._marks: set[str] = set()

    @property
    def is_wide(self) -> bool:
        return self.width == WIDE

    def line(self, points: Iterable[Point], colour: str, width: float) -> None:
        self._path(points, f"fill: none; stroke: {colour}; stroke-width: {width}; stroke-linecap: round")

    def area(self, points: Iterable[Point], colour: str, *, opacity: float = 1, gap: float = 0) -> None:
        """Fill what the points enclose; `gap` is the width of an edge in the paper's colour."""
        self._path(points, f"fill: {colour}; opacity: {opacity}; stroke: {PAPER}; stroke-width: {gap}")

    def band(self, xs: Point, ys: Point, colour: str, *, opacity: float = 1, gap: float = 0) -> None:
        self.area([(xs[0], ys[0]), (xs[1], ys[0]), (xs[1], ys[1]), (xs[0], ys[1])], colour, opacity=opacity, gap=gap)

    def marks(self, points: Iterable[Point], size: float, fill: str, edge: str = PAPER, width: float = 1.2) -> None:
        """Draw discs, or diamonds of size 7."""
        radius, name = size / 2, f"{self.name}-{size}"
        if name not in self._marks:
            self._marks.add(name)
            arc = f"a {radius} {radius} 0 1 0"
            shape = "M 0 -5 L 5 0 L 0 5 L -5 0 Z" if size == 7 else f"M {-radius} 0 {arc} {size} 0 {arc} {-size} 0 Z"
            ElementTree.SubElement(ElementTree.SubElement(self.root, "defs"), "path", id=name, d=shape)
        style = f"fill: {fill}; stroke: {edge}; stroke-width: {width}"
        for x, y in points:
            ElementTree.SubElement(self.root, "use", href=f"#{name}", x=f"{x:.2f}", y=f"{y:.2f}", style=style)

    def text(
        self, x: float, y: float, text: str, colour: str = MUTED, *, anchor: str = "start", strong: bool = False
    ) -> None:
        """Write a line of printable letters; lines behind it end around them."""
        style = f"font-size: 12.5px; fill: {colour}; stroke: {PAPER}; stroke-width: 4px; paint-order: stroke; "
        style += f"text-anchor: {anchor}; font-weight: {'bold' if strong else 'normal'}"
        element = ElementTree.SubElement(self.root, "text", x=f"{x:.2f}", y=f"{y:.2f}", style=style)
        element.text = "".join(letter if letter.isprintable() else "?" for letter in text)

    def _path(self, points: Iterable[Point], style: str) -> None:
        """Join points; the whole is closed only where it is filled."""
        steps = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
        ElementTree.SubElement(self.root, "path", d=f"M {steps}", style=style)


class Axes:
    """A part of a sheet, between pixels from its edges, with a scale in each direction."""

    def __init__(self, sheet: Sheet, left: float, top: float, right: float, bottom: float) -> None:
        self.sheet, self.xs, self.ys = sheet, (left, sheet.width - right), (sheet.height - bottom, top)
        self.x, self.y = Scale(0, 1, *self.xs), Scale(0, 1, *self.ys)

    def rule(self, value: float, colour: str = LINE, width: float = 0.75) -> None:
        """Draw a line from top to bottom."""
        self.sheet.line([(self.x(value), place) for place in self.ys], colour, width)

    def draw_x(self, label: str, *, has_grid: bool = True) -> None:
        """Draw the lower edge with its ticks and the axis's label."""
        bottom = self.ys[0]
        self.sheet.line([(place, bottom) for place in self.xs], LINE, 1)
        for tick, label_of_tick in zip(self.x.ticks, self.x.labels, strict=True):
            if has_grid:
                self.rule(tick)
            self.sheet.text(self.x(tick), bottom + 16, label_of_tick, anchor="middle")
        if label:
            self.sheet.text(sum(self.xs) / 2, bottom + 36, label, anchor="middle")

    def draw_y(self) -> None:
        for tick, label in zip(self.y.ticks, self.y.labels, strict=True):
            self.sheet.line([(place, self.y(tick)) for place in self.xs], LINE, 0.75)
            self.sheet.text(self.xs[0] - 4, self.y(tick) + 4, label, anchor="end")


def draw(name: str, height: int, paint: Callable[[Sheet], None]) -> Drawing:
    """Let `paint` draw on a wide and on a narrow sheet. `name` makes the ids of its elements unique in the page."""
    sheets = [Sheet(f"{name}-{end}", width, height) for end, width in (("w", WIDE), ("n", NARROW))]
    for sheet in sheets:
        paint(sheet)
    # Serialised by the XML library, which escapes all text.
    return Drawing(*(Markup(ElementTree.tostring(sheet.root, encoding="unicode")) for sheet in sheets))
