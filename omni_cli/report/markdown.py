"""A view as Markdown, for a comment on a pull request or GitHub's step summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omni_cli.report.view import Changes, Element, LimitList, Note, Paragraph, Section, Table, View

_SPECIAL = re.compile(r"[\\|<*]|\[(?!(?:95% CI|[-+\d.,% ]+)\](?!\())")
"""Characters that may begin markup; the bracket of an interval begins no link."""
_SPECIAL_OR_CODE = re.compile(f"[`_]|{_SPECIAL.pattern}")


def to_markdown(view: View) -> str:
    """Return the verdict in the first line, its reason, the sections and the warnings."""
    parts = [f"### {view.headline}", "" if view.failure is None else _note(view.failure)]
    parts += [_part(part, section) for section, inner in view.sections_for("text") for part in inner]
    parts += [f"> **{note.label}:** {_note(note)}" for note in view.notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def _part(part: Element, section: Section) -> str:
    """Format a part; what only a terminal can show is empty. Under a heading, sentences are items of a list."""
    match part:
        case LimitList(rows=rows):
            columns = ("Gated", "A", "B", "Change [95% CI]", "Limit", "Verdict")
            cells = [[*map(cell, (item.case, item.a, item.b, item.change, item.limit))] for item in rows]
            verdicts = [item.verdict if item.verdict == "pass" else f"**{item.verdict}**" for item in rows]
            return _table(columns, [[*row, verdict] for row, verdict in zip(cells, verdicts, strict=True)], range(1, 5))
        case Table(columns=columns, rows=rows) if columns:
            return _table(
                [*map(cell, columns)], [[cell(text, code=True) for text in row] for row in rows], part.numeric
            )
        case Paragraph(text=text):
            return cell(f"- {section.heading}: {text}" if section.heading else text, code=True)
        case Changes(rows=rows):
            listed = [f"`{cell(field)}` ({cell(before)} → {cell(after)})" for field, before, after in rows]
            return "Differs only in: " + ", ".join(listed) if listed else "No setting differs"
    return ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] | frozenset[int]) -> str:
    ruler = ["---:" if number in numeric else "---" for number in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, ruler, *rows))


def _note(note: Note) -> str:
    return cell(note.message, code=True) + (f"  \nHint: {cell(note.hint, code=True)}" if note.hint else "")


def cell(value: str, *, code: bool = False) -> str:
    """Escape text so that it stays in its cell, is no markup and mentions nobody; with `code`, backticks keep their
    meaning."""
    text = "".join(character if character.isprintable() else " " for character in value)
    return (_SPECIAL if code else _SPECIAL_OR_CODE).sub(r"\\\g<0>", text).replace("@", "@\u200b")
