"""A record as a view: text in a few shapes, figures and verdicts, which know no output.

One function per kind of record makes its view; `terminal`, `markdown`, `junit` and `html.page` show any view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from omni_cli.report.charts import Chart

T = TypeVar("T")

Tone = Literal["good", "bad", "open", "plain"]
Output = Literal["text", "page"]
Outcome = Literal["failure", "error", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Element:
    """A part of a section. `only` is the output that it is for: `text` is a terminal or Markdown, None means both."""

    only: Output | None = None

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Table(Element):
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


@dataclass(frozen=True)
class Paragraph(Element):
    """A sentence or more; backticks enclose code."""

    text: str


@dataclass(frozen=True)
class Lines(Element):
    """Lines for a terminal, as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Changes(Element):
    """Intended differences as (field, before, after)."""

    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Limit:
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


@dataclass(frozen=True)
class LimitList(Element):
    """The limits of a gate, and why some were not judged."""

    caption: str
    rows: tuple[Limit, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure(Element):
    """A chart, a sentence or two on what it shows, and a table of its values."""

    title: str
    text: str
    chart: Chart
    table: Table


@dataclass(frozen=True)
class Facts(Element):
    """Names with their values."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Code(Element):
    """A command to copy."""

    title: str
    text: str


@dataclass(frozen=True)
class Medium:
    """An image or a player. `source` is a `data:` URL of checked bytes; None for bytes that are neither."""

    kind: Literal["image", "audio"]
    caption: str
    source: str | None


@dataclass(frozen=True)
class Gallery(Element):
    """Images and players side by side."""

    title: str
    items: tuple[Medium, ...]


@dataclass(frozen=True)
class Words(Element):
    """Two texts, each as its beginning, the part that differs, and its end."""

    title: str
    expected: tuple[str, str, str]
    got: tuple[str, str, str]


@dataclass(frozen=True)
class Blink(Element):
    """Two images in one place, with a switch between them."""

    title: str
    expected: Medium
    got: Medium


@dataclass(frozen=True)
class Section:
    """Parts under a title on a page. In text, `heading` is the line above them, and they are indented below it."""

    title: str
    parts: Sequence[Element | None]
    heading: str = ""
    only: Output | None = None


@dataclass(frozen=True)
class Verdict:
    """A word, and the sentences that explain it."""

    word: str
    tone: Tone
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """A warning or the reason of a failure, with the action to take."""

    message: str
    hint: str | None = None
    label: str = "Warning"


@dataclass(frozen=True)
class Case:
    """A test of JUnit's: passed without an `outcome`; `word` is the verdict."""

    group: str
    name: str
    outcome: Outcome | None = None
    word: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class View:
    """One record. `kind` is its kind (`Benchmark`), `title` the measured subject, `details` the conditions.

    A text begins with `heading` and ends with `closing`; Markdown begins with `headline`, and with `failure`, the
    reason of an exit code other than 0.
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


def make_table(
    caption: str, items: Sequence[T], columns: Mapping[str, Callable[[T], str]], numeric: Iterable[int], **options: Any
) -> Table | None:
    """Return a table with a row per item, each column given by its head and its cell; None without items."""
    rows = tuple(tuple(cell(item) for cell in columns.values()) for item in items)
    return Table(caption, tuple(columns), rows, frozenset(numeric), **options) if rows else None
