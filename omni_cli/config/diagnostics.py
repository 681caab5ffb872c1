"""Diagnostics of a profile: every mistake in source order, each with its line and a caret.

profiles/bad.yaml:5:5: unknown key `gpu_memory_utilisation` in stage `thinker`
  |
5 |     gpu_memory_utilisation: 0.8
  |     ^^^^^^^^^^^^^^^^^^^^^^
hint: did you mean `gpu_memory_utilization`?
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omni_cli.core.errors import ProfileError
from omni_cli.core.text import visible, visible_character

# Line ends according to YAML 1.1, and so to PyYAML's line numbers.
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_MAX_LINE = 160  # characters shown of a source line
_MAX_SHOWN = 200  # diagnostics shown; a file with more is not a profile


@dataclass(frozen=True)
class SourceText:
    """A file (`label` as the user wrote it) or a command-line option (`label` is the option, no lines)."""

    label: str
    lines: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, label: str, text: str) -> SourceText:
        return cls(label, tuple(_LINE_BREAK.split(text)))

    def location_after(self, before: str) -> Location:
        """Return the location of the character after `before`, which is the beginning of the text."""
        lines = _LINE_BREAK.split(before)
        return Location(self, len(lines) - 1, len(lines[-1]))


@dataclass(frozen=True)
class Location:
    """Position of a token: line and column from 0, length in characters."""

    source: SourceText
    line: int = 0
    column: int = 0
    length: int = 1

    @property
    def label(self) -> str:
        """`FILE:LINE:COLUMN`, counted from 1, or the command-line option."""
        name = visible(self.source.label)
        return f"{name}:{self.line + 1}:{self.column + 1}" if self.source.lines else name


@dataclass(frozen=True)
class Diagnostic:
    """One mistake; `order` sorts the file before the options, and these in the given order."""

    location: Location
    message: str
    hint: str | None = None
    order: int = 0

    def render(self) -> str:
        """Format the mistake without the leading `error:`; lines joined with newlines, none at the end."""
        parts = [f"{self.location.label}: {self.message}", *_snippet(self.location)]
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def as_dict(self) -> dict[str, object]:
        """Convert for JSON; `line` and `column` count from 1 and are None for a command-line option."""
        in_file = bool(self.location.source.lines)
        return {
            "source": self.location.source.label,
            "line": self.location.line + 1 if in_file else None,
            "column": self.location.column + 1 if in_file else None,
            "message": self.message,
            "hint": self.hint,
        }


class InvalidProfileError(ProfileError):
    """A profile with mistakes; `diagnostics` holds them in source order, never empty."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = in_source_order(diagnostics)
        super().__init__(render_all(self.diagnostics))


def in_source_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(sorted(diagnostics, key=lambda item: (item.order, item.location.line, item.location.column)))


def render_all(diagnostics: Sequence[Diagnostic]) -> str:
    """Format all mistakes as paragraphs; each but the first begins with `error:`."""
    parts = [diagnostic.render() for diagnostic in diagnostics[:_MAX_SHOWN]]
    left = len(diagnostics) - len(parts)
    if left > 0:
        parts.append(f"{left} more in {visible(diagnostics[-1].location.source.label)}; fix these first")
    return "\n\nerror: ".join(parts)


def _snippet(location: Location) -> list[str]:
    """Return the source line with a caret under the token; empty for an option or an empty file."""
    if location.line >= len(location.source.lines) or not location.source.lines[location.line].strip():
        return []
    line = location.source.lines[location.line]
    column = min(location.column, len(line))
    start = max(0, column - _MAX_LINE // 2) if len(line) > _MAX_LINE else 0
    shown = line[start : start + _MAX_LINE]
    before = shown[: column - start]
    token = shown[column - start : column - start + max(location.length, 1)]
    number = str(location.line + 1)
    gutter = " " * len(number)
    carets = "^" * max(_width(token), 1)
    return [f"{gutter} |", f"{number} | {_expand_tabs(shown)}".rstrip(), f"{gutter} | {' ' * _width(before)}{carets}"]


def _expand_tabs(text: str) -> str:
    return "".join(" " if character == "\t" else visible_character(character) for character in text)


def _width(text: str) -> int:
    """Return the columns of `text` on a terminal."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in _expand_tabs(text)
    )
