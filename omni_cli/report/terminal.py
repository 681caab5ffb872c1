"""A view as text for a terminal."""

from __future__ import annotations

from omni_cli.report.tables import aligned
from omni_cli.report.view import Changes, Element, LimitList, Lines, Paragraph, Table, View

_MAX_CHANGES = 8


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
    return [*aligned(rows, gap=3), *(f"  {reason}" for reason in limits.reasons)]


def _lines(part: Element) -> list[str]:
    """Format a part; a table without columns has no head, and its caption is for others."""
    match part:
        case Table(columns=columns, rows=rows):
            head = [columns] if columns else []
            lines = aligned([*head, *rows[: part.most]], right=part.numeric, gap=2 if columns else 3)
            left = len(rows) - len(rows[: part.most])
            return [*lines, *([f"  and {left} more"] if left and not part.folded else [])]
        case Paragraph(text=text):
            return [text]
        case Lines(lines=lines):
            return list(lines)
        case Changes(rows=rows):
            listed = [f"{field} ({before} -> {after})" for field, before, after in rows[:_MAX_CHANGES]]
            listed += [f"{len(rows) - len(listed)} more"] if len(rows) > len(listed) else []
            return ["Differs only in: " + ", ".join(listed) if listed else "No setting differs"]
    return []
