"""What `omni compare --json` printed as a document."""

from __future__ import annotations

from omni_cli.report.bench_notes import not_comparable
from omni_cli.report.bench_text import Labels, shown
from omni_cli.report.html.comparison import comparison_parts, gate_table, gated_values, verdict_of
from omni_cli.report.html.elements import Advice, Document, Table, Verdict, sections_of
from omni_cli.report.html.stored import CompareDocument, compared_of, differences_of, gate_of
from omni_cli.report.units import count
from omni_cli.stats.comparable import Difference


def compare_page_document(name: str, record: CompareDocument, source: str) -> Document:
    """Everything that a comparison says; `name` begins the ids of its figures."""
    labels = Labels(record.a.path, record.b.path)
    compared = compared_of(record.comparisons, record.memory)
    gate = None if record.gate is None else gate_of(record.gate, gated_values(compared))
    mismatches, differences = differences_of(record.mismatches), differences_of(record.differences)
    if record.comparable:
        verdict = verdict_of(gate, compared, labels) or Verdict("nothing compared", "open")
    else:
        verdict = Verdict("not comparable", "open", (not_comparable(mismatches).message + ".",))
    unmatched = f"only in one of the records, so not compared: {', '.join(map(shown, record.unmatched))}"
    return Document(
        kind="Comparison",
        source=source,
        title=f"{shown(record.b.path)} against {shown(record.a.path)}",
        details=f"{count(len(compared), 'pair')} of variants",
        created=record.b.created,
        verdict=verdict,
        advice=(*map(Advice, record.failures), *([Advice(unmatched)] if record.unmatched else [])),
        sections=sections_of(
            [
                ("Comparison", [gate_table(gate), *comparison_parts(name, compared, labels)]),
                (
                    "What differs",
                    [
                        _differences("What must not differ, and does", mismatches, labels),
                        _differences("What may differ", differences, labels),
                    ],
                ),
            ]
        ),
    )


def _differences(caption: str, differences: tuple[Difference, ...], labels: Labels) -> Table | None:
    rows = tuple((shown(item.field), shown(item.a), shown(item.b)) for item in differences)
    return Table(caption, ("Field", labels.a, labels.b), rows) if rows else None
