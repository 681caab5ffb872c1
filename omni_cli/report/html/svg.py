"""Matplotlib's figures as inline SVG: coloured by the page's style sheet, text as text, unique ids.

Each figure is drawn in two widths, because letters that are scaled with a drawing are too small on a phone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

WIDE, NARROW = 880, 358
"""Widths in pixels: a column on a desktop, and a phone's 390 pixels without the margins."""

# Placeholders that no drawing contains otherwise; the page's style sheet maps them to colours, light and dark.
COLOURS = {
    name: f"#0{digit}0{digit}0{digit}"
    for digit, name in enumerate(("ink", "muted", "line", "accent", "soft", "paper", "bad"), start=1)
}
INK, MUTED, LINE, ACCENT, SOFT, PAPER, BAD = COLOURS.values()
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    # Names in a record may contain dollar signs.
    "text.parse_math": False,
    "font.size": 12.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 12,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 1,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": LINE,
    "grid.linewidth": 0.75,
    "axes.labelpad": 6,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "none",
    "lines.solid_capstyle": "round",
}
_FONT_FAMILY = re.compile(r"font-family: [^;]*(; )?")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_ALLOWED_TAGS = frozenset({"svg", "g", "path", "use", "text", "tspan", "defs", "clipPath", "rect", "circle"})


@dataclass(frozen=True)
class Drawing:
    """The same figure for wide and for narrow screens, as `<svg>` elements."""

    wide: Markup
    narrow: Markup


class Sheet:
    """A figure of `width` pixels to draw on; axes are placed in pixels from its upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.canvas = Canvas(figsize=(width / 72, height / 72), dpi=72)

    @property
    def is_wide(self) -> bool:
        return self.width == WIDE

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Create axes between two corners; `right` and `bottom` count from the other edges."""
        return self.canvas.add_axes(
            (
                left / self.width,
                bottom / self.height,
                (self.width - left - right) / self.width,
                (self.height - top - bottom) / self.height,
            )
        )


def draw(name: str, height: int, paint: Callable[[Sheet], None]) -> Drawing:
    """Let `paint` draw on a wide and on a narrow sheet. `name` makes the ids of its elements unique in the page."""
    return Drawing(*(_draw_sheet(f"{name}-{end}", width, height, paint) for end, width in (("w", WIDE), ("n", NARROW))))


def _draw_sheet(name: str, width: int, height: int, paint: Callable[[Sheet], None]) -> Markup:
    stream = io.StringIO()
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        # Matplotlib measures with its own font, which may lack a letter that the reader's browser has.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        sheet = Sheet(width, height)
        paint(sheet)
        FigureCanvasSVG(sheet.canvas).print_svg(stream)  # type: ignore[no-untyped-call] # untyped in matplotlib
    root = ElementTree.fromstring(stream.getvalue())
    _clean(root, name)
    root.attrib = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    # Serialised by the XML library, which escapes all text.
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(element: ElementTree.Element, name: str) -> None:
    """Keep the drawing, in the page's colours and font; prefix ids and references to them with `name`."""
    element.tag = _local(element.tag)
    for child in list(element):
        if _local(child.tag) in _ALLOWED_TAGS:
            _clean(child, name)
        else:
            element.remove(child)
    element.attrib = {_local(key): _value(_local(key), value, name) for key, value in element.attrib.items()}
    if element.tag != "text" and element.tag != "tspan":
        element.text = None
    element.tail = None


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value[1:]}"
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")
    if key == "style":
        return _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), _FONT_FAMILY.sub("", value))
    return value


def _local(name: str) -> str:
    """Return a name without its namespace, which HTML does not need."""
    return name.rpartition("}")[2]
