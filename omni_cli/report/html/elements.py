"""The elements of a page: plain text in a few shapes, and drawings. Templates turn them into HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from omni_cli.report.html.svg import Drawing

Tone = Literal["good", "bad", "open", "plain"]


@dataclass(frozen=True)
class Table:
    """`numeric` are the columns whose cells end at the same place. Every row has as many cells as `columns`.

    A `folded` one shows its caption until it is opened.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    folded: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in a sentence or two, and the numbers that it was drawn from."""

    kind: ClassVar[str] = "figure"
    title: str
    text: str
    drawing: Drawing
    table: Table


@dataclass(frozen=True)
class Facts:
    """Names and values."""

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


Part = Table | Figure | Facts | Code | Paragraph


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Verdict:
    """A word, and the sentences behind it."""

    word: str
    tone: Tone
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """A warning or another remark that `label` names, and what to do about it."""

    message: str
    hint: str | None = None
    label: str = "Warning"


@dataclass(frozen=True)
class Document:
    """One record. `kind` is what it is (`Benchmark`), `title` what was measured, `details` how, in a few words."""

    kind: str
    source: str
    title: str
    details: str
    created: str
    verdict: Verdict
    advice: tuple[Advice, ...] = ()
    sections: tuple[Section, ...] = field(default=())


def sections_of(candidates: Sequence[tuple[str, Sequence[Part | None]]]) -> tuple[Section, ...]:
    """Sections in order; parts that are None, and sections without any, are left out."""
    kept = [(title, tuple(part for part in parts if part is not None)) for title, parts in candidates]
    return tuple(Section(title, parts) for title, parts in kept if parts)
