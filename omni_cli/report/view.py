"""A record as a view: text in a few shapes, charts and verdicts, which know no output.

One function per kind of record makes its view; `renderers` and `html.page` show any view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

Tone = Literal["good", "bad", "open", "plain"]
Output = Literal["text", "page"]
Outcome = Literal["failure", "error", "skipped"]


Colour = Literal["ink", "muted", "line", "accent", "soft", "bad"]
Bounds = tuple[float, float] | None

MAX_DOTS = 800
"""If a series has more values than this, only every second, third, ... is drawn."""


class ChartRow(Struct, frozen=True):
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


class Rows(Struct, frozen=True):
    """Rows on one axis: of bars from 0, of values, or with a `margin` of ratios around 1, where it is shaded."""

    rows: tuple[ChartRow, ...]
    label: str
    margin: float | None = None


class Series(Struct, frozen=True):
    """Values over a panel's axis. The xs of a `step` and of an `area` are edges, one more than there are values."""

    style: Literal["line", "thin", "dots", "rings", "diamond", "step", "area"]
    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour = "muted"


class Shade(Struct, frozen=True):
    """A shaded stretch of the axis."""

    start: float
    end: float
    colour: Colour = "bad"
    label: str = ""


class Panel(Struct, frozen=True):
    """Series on one scale, which reaches over `bounds` at least."""

    name: str
    unit: str
    series: tuple[Series, ...]
    bounds: Bounds = None
    spans: tuple[Shade, ...] = ()


class Panels(Struct, frozen=True):
    """Panels below one another with the same axis, over `ends`; `numbered` is an axis of integers."""

    panels: tuple[Panel, ...]
    label: str
    ends: tuple[float, float]
    numbered: bool = True
    height: int = 145


class Trade(Struct, frozen=True):
    """A setting: its cost over that of another, and another value that matters, both with bounds."""

    name: str
    ratio: float
    bounds: Bounds
    value: float
    on_front: bool = False
    best: bool = False
    value_bounds: Bounds = None


class Trades(Struct, frozen=True):
    """Settings by their cost and by another value; a line joins those on the front."""

    rows: tuple[Trade, ...]
    label: str
    cost: str = "cost over that of the best setting"


Chart = Rows | Panels | Trades


def keep_some(values: Sequence[float]) -> Sequence[float]:
    """Return at most `MAX_DOTS` of the values, evenly spaced."""
    return values[:: -(-len(values) // MAX_DOTS)] if values else values


class Element(Struct, frozen=True, kw_only=True):
    """A part of a section. `only` is the output that it is for: `text` is a terminal or Markdown, None means both."""

    only: Output | None = None

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


class Table(Element, frozen=True):
    """`numeric` are the columns whose cells are right-aligned. Every row has as many cells as `columns`, if any.

    A `folded` table shows only its caption on a page until it is opened. In text, `lead` is the line above it, which
    begins a paragraph, and `most` the number of rows.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    folded: bool = False
    lead: str = ""
    most: int | None = None


class Paragraph(Element, frozen=True):
    """A sentence or more; backticks enclose code."""

    text: str


class Lines(Element, frozen=True):
    """Lines for a terminal, as they are."""

    lines: tuple[str, ...]


class Changes(Element, frozen=True):
    """Intended differences as (field, before, after)."""

    rows: tuple[tuple[str, str, str], ...]

    def sentence(self, arrow: str = "->") -> str:
        """Format `Differs only in: settings.steps (2 -> 8), code.commit (a1 -> b2)`."""
        listed = ", ".join(f"{name} ({before} {arrow} {after})" for name, before, after in self.rows)
        return f"Differs only in: {listed}" if listed else "No setting differs"


class Limit(Struct, frozen=True):
    """A limit, both values, the change and the verdict; `case` names it where nothing else is near.

    `reason` is why it has no verdict.
    """

    name: str
    case: str
    a: str
    b: str
    change: str
    limit: str
    verdict: str
    reason: str = ""


class LimitList(Element, frozen=True):
    """The limits of a gate, and why some were not judged."""

    caption: str
    rows: tuple[Limit, ...]
    reasons: tuple[str, ...] = ()


class Figure(Element, frozen=True):
    """A chart, a sentence or two on what it shows, and a table of its values."""

    title: str
    text: str
    chart: Chart
    table: Table


class Facts(Element, frozen=True):
    """Names with their values."""

    title: str
    rows: tuple[tuple[str, str], ...]


class Code(Element, frozen=True):
    """A command to copy."""

    title: str
    text: str


class Medium(Struct, frozen=True):
    """An image or a player. `source` is a `data:` URL of checked bytes; None for bytes that are neither."""

    kind: Literal["image", "audio"]
    caption: str
    source: str | None


class Gallery(Element, frozen=True):
    """Images and players side by side."""

    title: str
    items: tuple[Medium, ...]


class Words(Element, frozen=True):
    """Two texts, each as its beginning, the part that differs, and its end."""

    title: str
    expected: tuple[str, str, str]
    got: tuple[str, str, str]


class Blink(Element, frozen=True):
    """Two images in one place, with a switch between them."""

    title: str
    expected: Medium
    got: Medium


class Section(Struct, frozen=True):
    """Parts under a title on a page. In text, `heading` is the line above them, and they are indented below it."""

    title: str
    parts: Sequence[Element | None]
    heading: str = ""
    only: Output | None = None


class Verdict(Struct, frozen=True):
    """A word, and the sentences that explain it."""

    word: str
    tone: Tone
    sentences: tuple[str, ...] = ()


class Note(Struct, frozen=True):
    """A warning or the reason of a failure, with the action to take."""

    message: str
    hint: str | None = None
    label: str = "Warning"


class Case(Struct, frozen=True):
    """A test of JUnit's: passed without an `outcome`; `word` is the verdict."""

    group: str
    name: str
    outcome: Outcome | None = None
    word: str = ""
    message: str = ""


class View(Struct, frozen=True, kw_only=True):
    """One record. `kind` is its kind (`Benchmark`), `title` the measured subject, `details` the conditions.

    A text begins with `heading` and ends with `closing`; Markdown begins with `headline`, and with `failure`, the
    reason of an exit code other than 0. `facts` tell it from others of the same title.
    """

    kind: str
    title: str
    verdict: Verdict
    details: str = ""
    created: str = ""
    source: str = ""
    heading: str = ""
    closing: str = ""
    headline: str = ""
    failure: Note | None = None
    notes: tuple[Note, ...] = ()
    sections: Sequence[Section] = ()
    cases: tuple[Case, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def sections_for(self, output: Output) -> list[tuple[Section, list[Element]]]:
        """Return the sections that an output shows, each with its parts; none without parts."""
        sections = [(item, item.parts) for item in self.sections if item.only in (None, output)]
        found = [(item, [part for part in parts if part and part.only in (None, output)]) for item, parts in sections]
        return [(section, parts) for section, parts in found if parts]


def sentence(text: str) -> str:
    """Add a capital letter, unless the text begins with a name and a colon, and a full stop."""
    if not text.partition(" ")[0].endswith(":"):
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
