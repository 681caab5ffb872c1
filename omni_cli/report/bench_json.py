"""Measurements, comparisons and verdicts as the JSON of the contract, and as GitHub's benchmark action reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from omni_cli.record import E2E
from omni_cli.report.bench_units import title
from omni_cli.stats.comparable import Difference
from omni_cli.stats.compare import Comparison
from omni_cli.stats.findings import Findings, Pair
from omni_cli.stats.gate import Gate, GateMetric
from omni_cli.stats.metrics import higher_is_better
from omni_cli.stats.payback import Payback
from omni_cli.stats.summary import Summary

COMPARE_SCHEMA: Final = "omni.compare/1"


def compare_document(findings: Findings, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """What `omni compare --json` prints; `a` and `b` say where the records came from.

    Where the two may not be compared there are no comparisons, because they would be read as verdicts.
    """
    shown = findings.pairs if findings.is_comparable else ()
    return {
        "schema": COMPARE_SCHEMA,
        "a": a,
        "b": b,
        "comparable": findings.is_comparable,
        "mismatches": differences_json(findings.mismatches),
        "differences": differences_json(
            [*findings.differences, *(d for pair in findings.pairs for d in pair.differences)]
        ),
        "unmatched": list(findings.unmatched),
        "failures": list(findings.failures),
        "comparisons": [entry for pair in shown for entry in comparisons_json(pair)],
        "memory": [entry for pair in shown for entry in memory_json(pair)],
        "gate": None if findings.gate is None else gate_json(findings.gate),
    }


def comparisons_json(pair: Pair) -> list[dict[str, Any]]:
    """The entries of `comparisons`, each with what is known of the pair's outputs."""
    outputs = {"identical": pair.outputs.identical, "max_abs_diff": pair.outputs.max_abs_diff}
    worth = {} if pair.payback is None else {"payback": _payback(pair.payback)}
    return [
        {**_comparison(item), "outputs": outputs, **(worth if item.metric == E2E else {})} for item in pair.comparisons
    ]


def memory_json(pair: Pair) -> list[dict[str, Any]]:
    """Peaks that both sides measured."""
    return [
        {
            "metric": peak.metric, "a": peak.a, "b": peak.b, "a_bytes": peak.a_bytes, "b_bytes": peak.b_bytes,
            "ratio": peak.b_bytes / peak.a_bytes,
        }
        for peak in pair.memory
        if peak.a_bytes and peak.b_bytes
    ]  # fmt: skip


def gate_json(gate: Gate) -> dict[str, Any]:
    """The contract's `gate`; `change` and `ci95` are how much worse b is (0.05 is 5 %)."""
    return {
        "verdict": gate.verdict,
        "max_regression": gate.limits.max_regression,
        "max_abs_diff": gate.limits.max_abs_diff,
        "blocks_needed": gate.blocks_needed,
        "metrics": [_gate_metric(metric) for metric in gate.metrics],
        "mismatches": differences_json(gate.mismatches),
        "reasons": list(gate.reasons),
    }


def summary_json(summary: Summary) -> dict[str, Any]:
    """The contract's entry of `summary`; null where the sample does not support a number."""
    return {
        "n": summary.n,
        "median": summary.median,
        "ci95": None if summary.ci95 is None else list(summary.ci95),
        "min": summary.minimum,
        "max": summary.maximum,
        **{f"p{percentile}": value for percentile, value in summary.percentiles.items()},
        **({} if summary.requests is None else {"requests": summary.requests}),
    }


def differences_json(differences: Iterable[Difference]) -> list[dict[str, Any]]:
    return [{"field": item.field, "a": item.a, "b": item.b} for item in differences]


def smaller_is_better_json(name: str, summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Medians as github-action-benchmark's `customSmallerIsBetter`; metrics where more is better are left out."""
    return [
        {
            "name": f"{name}: {title(summary.metric)}",
            "unit": "s" if summary.metric.endswith("_s") else "1",
            "value": summary.median,
            **({} if summary.ci95 is None else {"range": f"{summary.ci95[0]:.6g} to {summary.ci95[1]:.6g}"}),
            "extra": f"median of {summary.n} runs in {summary.blocks} blocks",
        }
        for summary in summaries
        if not higher_is_better(summary.metric)
    ]


def _comparison(item: Comparison) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "metric": item.metric,
        "a": item.a,
        "b": item.b,
        "a_median": item.a_median,
        "b_median": item.b_median,
        "ratio": item.ratio,
        "ci95": None if item.ci95 is None else list(item.ci95),
        "ratio_of_medians": item.b_median / item.a_median if item.ratio is not None else None,
        "verdict": item.verdict,
        "margin": item.margin,
        "blocks": item.blocks,
        "interleaved": item.paired,
    }
    if item.verdict == "inconclusive":
        entry["blocks_needed"] = item.blocks_needed
    if item.reason is not None:
        entry["reason"] = item.reason
    return entry


def _payback(item: Payback) -> dict[str, Any]:
    return {
        "mode": item.mode,
        "other": item.other,
        "gained_s": item.gained_s,
        "ci95": None if item.interval is None else list(item.interval),
        "bytes_more": item.bytes_more,
        "preparation_s": item.preparation_s,
        "requests": item.requests,
    }


def _gate_metric(metric: GateMetric) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "metric": metric.metric,
        "a": metric.a,
        "b": metric.b,
        "verdict": metric.verdict,
        "limit": metric.limit,
        "change": metric.change,
        "ci95": None if metric.interval is None else list(metric.interval),
    }
    optional = ("detectable", "p_value", "place", "reason", "blocks_needed")
    return entry | {name: getattr(metric, name) for name in optional if getattr(metric, name) is not None}
