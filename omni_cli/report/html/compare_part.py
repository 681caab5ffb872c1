"""The document of `omni compare --json` as a page."""

from __future__ import annotations

from omni_cli.report.bench_notes import not_comparable
from omni_cli.report.bench_text import Labels, shown
from omni_cli.report.html.comparison import comparison_parts, gate_table, page_verdict, get_pairs
from omni_cli.report.html.elements import Advice, Document, Table, Verdict, get_sections
from omni_cli.report.html.machine import sentence
from omni_cli.report.units import count
from omni_cli.results import CompareRecord, Difference


def compare_page_document(name: str, record: CompareRecord, source: str) -> Document:
    """Return the document of a comparison; `name` is the prefix of its figures' ids."""
    labels = Labels(record.a.path, record.b.path)
    pairs = get_pairs(record.comparisons, record.memory)
    if record.failures:
        word = f"gate: {record.gate.verdict}" if record.gate else "failed"
        verdict = Verdict(word, "bad", tuple(map(sentence, record.failures)))
    elif record.comparable:
        verdict = page_verdict(record.gate, pairs, labels) or Verdict("nothing compared", "open")
    else:
        verdict = Verdict("not comparable", "open", (not_comparable(record.mismatches).message + ".",))
    unmatched = f"only in one of the records, so not compared: {', '.join(map(shown, record.unmatched))}"
    return Document(
        kind="Comparison",
        source=source,
        title=f"{shown(record.b.path)} against {shown(record.a.path)}",
        details=f"{count(len(pairs), 'pair')} of variants",
        created=record.b.created,
        verdict=verdict,
        advice=(Advice(unmatched),) if record.unmatched else (),
        sections=get_sections(
            [
                ("Comparison", [gate_table(record.gate, pairs), *comparison_parts(name, pairs, labels)]),
                (
                    "What differs",
                    [
                        _differences("Differences that rule out a comparison", record.mismatches, labels),
                        _differences("What may differ", record.differences, labels),
                    ],
                ),
            ]
        ),
    )


def _differences(caption: str, differences: tuple[Difference, ...], labels: Labels) -> Table | None:
    rows = tuple((shown(item.field), shown(item.a), shown(item.b)) for item in differences)
    return Table(caption, ("Field", labels.a, labels.b), rows) if rows else None
