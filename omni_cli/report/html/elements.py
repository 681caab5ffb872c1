"""The elements of a page: plain text in a few shapes, and drawings. Templates turn them into HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from omni_cli.report.html.svg import Drawing

Tone = Literal["good", "bad", "open", "plain"]


@dataclass(frozen=True)
class Table:
    """`numeric` are the columns whose cells are right-aligned. Every row has as many cells as `columns`.

    A `folded` table shows only its caption until it is opened.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    folded: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing, a sentence or two on what it shows, and a table of its values."""

    kind: ClassVar[str] = "figure"
    title: str
    text: str
    drawing: Drawing
    table: Table


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    kind: ClassVar[str] = "facts"
    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Code:
    """A command to copy."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Shown:
    """An image or a player. `source` is a `data:` URL of checked bytes; None for bytes that are neither."""

    kind: Literal["image", "audio"]
    caption: str
    source: str | None


@dataclass(frozen=True)
class Gallery:
    """Images and players side by side."""

    kind: ClassVar[str] = "gallery"
    title: str
    items: tuple[Shown, ...]


@dataclass(frozen=True)
class Words:
    """Two texts, each as its beginning, the part that differs, and its end."""

    kind: ClassVar[str] = "words"
    title: str
    expected: tuple[str, str, str]
    got: tuple[str, str, str]


@dataclass(frozen=True)
class Blink:
    """Two images in one place, with a switch between them. The sources are `data:` URLs."""

    kind: ClassVar[str] = "blink"
    title: str
    expected_caption: str
    got_caption: str
    expected_source: str
    got_source: str


Part = Table | Figure | Facts | Code | Paragraph | Gallery | Words | Blink


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Verdict:
    """A word, and the sentences that explain it."""

    word: str
    tone: Tone
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """A remark named by `label`, such as a warning, and the action to take."""

    message: str
    hint: str | None = None
    label: str = "Warning"


@dataclass(frozen=True)
class Document:
    """One record. `kind` is its kind (`Benchmark`), `title` the measured subject, `details` the conditions."""

    kind: str
    source: str
    title: str
    details: str
    created: str
    verdict: Verdict
    advice: tuple[Advice, ...] = ()
    sections: tuple[Section, ...] = field(default=())


def get_sections(candidates: Sequence[tuple[str, Sequence[Part | None]]]) -> tuple[Section, ...]:
    """Return sections in order, without parts that are None and without sections that are then empty."""
    kept = [(title, tuple(part for part in parts if part is not None)) for title, parts in candidates]
    return tuple(Section(title, parts) for title, parts in kept if parts)
