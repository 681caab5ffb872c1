"""Views as text for a terminal, as Markdown, and as JUnit XML; pages are made in `html`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omni_cli.report.tables import align
from omni_cli.report.view import Changes, Element, LimitList, Lines, Note, Paragraph, Section, Table, View

_MAX_CHANGES = 8
_SPECIAL = re.compile(r"[\\|<*]|\[(?!(?:95% CI|[-+\d.,% ]+)\](?!\())")
"""Characters that may begin markup; the bracket of an interval begins no link."""
_SPECIAL_OR_CODE = re.compile(f"[`_]|{_SPECIAL.pattern}")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLURALS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def to_text(view: View) -> str:
    """Return the heading, the sections, the limits of a gate, which are what a reader looks for last, and the end."""
    paragraphs, limits = [[view.heading]], []
    for section, parts in view.sections_for("text"):
        paragraphs.append([section.heading] if section.heading else [])
        for part in parts:
            if isinstance(part, LimitList):
                limits.append(["Gate", *limit_lines(part)])
            elif isinstance(part, Table) and part.lead:
                paragraphs.append([part.lead, *_lines(part)])
            else:
                # A table is indented already.
                indent = "  " if section.heading and not isinstance(part, Table) else ""
                paragraphs[-1] += [f"{indent}{line}" for line in _lines(part)]
    return "\n\n".join("\n".join(lines) for lines in [*paragraphs, *limits, [view.closing]] if any(lines))


def limit_lines(limits: LimitList) -> list[str]:
    """Format one aligned line per limit: from, to, change with interval, limit, verdict."""
    rows = [
        (item.name, "-" if item.a == "-" else f"{item.a} -> {item.b}", item.change, f"limit {item.limit}", item.verdict)
        if item.a
        else (item.name, item.change, "", "", item.verdict)
        for item in limits.rows
    ]
    return [*align(rows, gap=3), *(f"  {reason}" for reason in limits.reasons)]


def _lines(part: Element) -> list[str]:
    """Format a part; a table without columns has no head, and its caption is for others."""
    match part:
        case Table(columns=columns, rows=rows):
            head = [columns] if columns else []
            lines = align([*head, *rows[: part.most]], right=part.numeric, gap=2 if columns else 3)
            left = len(rows) - len(rows[: part.most])
            return [*lines, *([f"  and {left} more"] if left and not part.folded else [])]
        case Paragraph(text=text):
            return [text]
        case Lines(lines=lines):
            return list(lines)
        case Changes(rows=rows):
            more = len(rows) - _MAX_CHANGES
            return [Changes(rows[:_MAX_CHANGES]).sentence() + (f", {more} more" if more > 0 else "")]
    return []


def to_markdown(view: View) -> str:
    """Return the verdict in the first line, its reason, the sections and the warnings."""
    parts = [f"### {view.headline}", "" if view.failure is None else _note(view.failure)]
    parts += [_part(part, section) for section, inner in view.sections_for("text") for part in inner]
    parts += [f"> **{note.label}:** {_note(note)}" for note in view.notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def _part(part: Element, section: Section) -> str:
    """Format a part; what only a terminal can show is empty. Under a heading, sentences are items of a list."""
    match part:
        case LimitList(rows=rows) if rows:
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
            return Changes(tuple((f"`{cell(field)}`", cell(a), cell(b)) for field, a, b in rows)).sentence("→")
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


def to_junit(view: View, name: str) -> str:
    """Return a suite of that name with its numbers of cases. Characters that XML cannot represent become `?`."""
    from xml.etree import ElementTree

    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name=_NOT_XML.sub("?", name))
    for tag, plural in _PLURALS.items():
        suite.set(plural, str(sum(case.outcome == tag for case in view.cases)))
    suite.set("tests", str(len(view.cases)))
    for case in view.cases:
        test = ElementTree.SubElement(suite, "testcase", classname=case.group, name=_NOT_XML.sub("?", case.name))
        if case.outcome is not None:
            of_kind = {} if case.outcome == "skipped" else {"type": case.word}
            ElementTree.SubElement(test, case.outcome, {"message": _NOT_XML.sub("?", case.message), **of_kind})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
