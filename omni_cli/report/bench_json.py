"""Measurements as JSON for other programs: a self-check, and medians for GitHub's benchmark action."""

from __future__ import annotations

from omni_cli.metrics import E2E, get_unit, higher_is_better
from omni_cli.record import Variant
from omni_cli.report.units import title
from omni_cli.results import SelfCheck, Summary


def self_check_json(check: SelfCheck) -> dict[str, object]:
    return {
        "schema": "omni.self_check/1",
        "ratio": check.ratio,
        "ci95": list(check.ci95),
        "detectable": check.detectable,
        "blocks": check.blocks,
    }


def smaller_is_better_json(variant: Variant, summaries: dict[str, Summary]) -> list[dict[str, object]]:
    """Return medians as github-action-benchmark's `customSmallerIsBetter`, without metrics where more is better."""
    blocks = {
        metric: {sample.block for sample in variant.samples if metric in (E2E, *sample.metrics)} for metric in summaries
    }
    return [
        {
            "name": f"{variant.name}: {title(metric)}",
            "unit": get_unit(metric),
            "value": summary.median,
            **({} if summary.ci95 is None else {"range": f"{summary.ci95[0]:.6g} to {summary.ci95[1]:.6g}"}),
            "extra": f"median of {summary.n} runs in {len(blocks[metric])} blocks",
        }
        for metric, summary in summaries.items()
        if not higher_is_better(metric)
    ]
