"""A comparison as Markdown, for a comment on a pull request or GitHub's step summary. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.errors import ExitCode
from omni_cli.report.bench_notes import Note, verdict_note, warnings
from omni_cli.report.bench_text import (
    Labels,
    break_even_sentence,
    change,
    comparison_rows,
    gate_rows,
    pair_sentence,
    quality_text,
    work_sentence,
)
from omni_cli.report.bench_units import limit, title
from omni_cli.results import Difference, GateResult
from omni_cli.stats.verdicts import ComparisonResult, Pair


def comparison_markdown(result: ComparisonResult, labels: Labels, further: Sequence[Note] = ()) -> str:
    """Return the report, with its verdict in the first line; `further` warnings are about the machine."""
    parts = [f"### {_headline(result)}"]
    if result.exit_code != ExitCode.OK:
        parts.append(_note(verdict_note(result)))
    if not result.is_comparable:
        rows = [(f"`{cell(item.field)}`", cell(item.a), cell(item.b)) for item in result.mismatches]
        parts.append(table(("Field", cell(labels.a), cell(labels.b)), rows))
    else:
        if result.gate is not None and (result.gate.metrics or result.gate.quality):
            parts.append(_gate_table(result.gate, result.pairs))
        parts += [_pair(pair, labels, result.differences) for pair in result.pairs]
    parts += [f"> **Warning:** {_note(note)}" for note in (*warnings(result), *further)]
    return "\n\n".join(parts) + "\n"


def _headline(result: ComparisonResult) -> str:
    if result.gate is not None:
        return f"omni gate: {result.gate.verdict}"
    if result.failures:
        return "omni compare: failed"
    return "omni compare" if result.is_comparable else "omni compare: not comparable"


def _gate_table(gate: GateResult, pairs: Sequence[Pair]) -> str:
    rows = [
        (
            cell(f"{metric.b}: {title(metric.metric)}" if metric.b else name),
            a,
            b,
            change(metric),
            f"+{limit(metric.limit)}",
            f"**{metric.verdict}**" if metric.verdict != "pass" else "pass",
        )
        for metric, name, a, b in gate_rows(gate, pairs)
    ]
    rows += [
        (cell(f"{item.b}: {item.limit}"), "", "", cell(quality_text(item)), "", f"**{item.verdict}**")
        for item in gate.quality or ()
    ]
    return table(("Gated", "A", "B", "Change [95% CI]", "Limit", "Verdict"), rows)


def _pair(pair: Pair, labels: Labels, differences: Sequence[Difference]) -> str:
    head, *rows = comparison_rows(pair, labels)
    parts = [table([cell(name) if place in (1, 2) else name for place, name in enumerate(head)], rows)]
    sentences = (work_sentence(pair), pair_sentence(pair, labels), break_even_sentence(pair))
    parts += [cell(sentence) for sentence in sentences if sentence]
    listed = [f"`{cell(d.field)}` ({cell(d.a)} → {cell(d.b)})" for d in (*pair.differences, *differences)]
    parts.append("Differs only in: " + ", ".join(listed) if listed else "No setting differs")
    return "\n\n".join(parts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 2), "---"], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _note(note: Note) -> str:
    return cell(note.message, code=True) + (f"  \nHint: {cell(note.hint, code=True)}" if note.hint else "")


def cell(value: object, *, code: bool = False) -> str:
    """Escape text so that it stays in its cell, is no markup and mentions nobody; with `code`, backticks keep their
    meaning."""
    text = "".join(character if character.isprintable() else " " for character in str(value))
    for character in ("\\", "|", "<", "*", "[", *(() if code else ("`", "_"))):
        text = text.replace(character, f"\\{character}")
    return text.replace("@", "@\u200b")
