"""A gate as JUnit XML: a regression is a failure, an inconclusive limit is skipped, a limit that was not judged is an
error."""

from __future__ import annotations

from xml.etree import ElementTree

from omni_cli.report.bench_notes import verdict_note
from omni_cli.report.bench_text import change, gate_rows, open_end, quality_text
from omni_cli.report.bench_units import limit, title
from omni_cli.report.junit import add_case, add_outcome, new_suite, to_xml
from omni_cli.results import GateResult
from omni_cli.stats.verdicts import ComparisonResult, Pair


def comparison_junit(result: ComparisonResult, name: str) -> str:
    """Write one test case per limit, or a single one if there is no limit or no comparison."""
    suite = new_suite(name)
    gate = result.gate
    if gate is None or gate.verdict in ("failed", "not comparable"):
        case = _case(suite, "gate" if gate else "comparable")
        if result.failures or not result.is_comparable:
            add_outcome(case, "error", "failed" if result.failures else "not comparable", verdict_note(result).message)
    else:
        _gate_cases(suite, gate, result.pairs)
    return to_xml(suite)


def _gate_cases(suite: ElementTree.Element, gate: GateResult, pairs: tuple[Pair, ...]) -> None:
    for metric, name, a, b in gate_rows(gate, pairs):
        case = _case(suite, f"{metric.b}: {title(metric.metric)}" if metric.b else name)
        sentence = f"{a} -> {b}, {change(metric)}, limit +{limit(metric.limit)}"
        if metric.verdict == "regression":
            add_outcome(case, "failure", "regression", sentence)
        elif metric.verdict == "inconclusive":
            add_outcome(case, "skipped", "inconclusive", f"{sentence}: {open_end(metric)}")
    for item in gate.quality or ():
        case = _case(suite, f"{item.b}: {item.limit}")
        if item.verdict == "output mismatch":
            add_outcome(case, "failure", item.verdict, quality_text(item))
        elif item.verdict == "inconclusive":
            add_outcome(case, "skipped", item.verdict, quality_text(item))
    if gate.max_abs_diff is not None or (gate.reasons and not gate.quality):
        case = _case(suite, "outputs" if gate.max_abs_diff is not None else "variants")
        if gate.verdict == "output mismatch":
            add_outcome(case, "failure", "output mismatch", "; ".join(gate.reasons))
        elif gate.reasons:
            add_outcome(case, "skipped", "inconclusive", "; ".join(gate.reasons))


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return add_case(suite, "omni.gate", name)
