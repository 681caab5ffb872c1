"""Sentences and cells of comparisons."""

from __future__ import annotations

from dataclasses import dataclass

from omni_cli.metrics import ALLOCATED, E2E
from omni_cli.report.units import (
    count,
    limit,
    one_line,
    percent,
    percent_interval,
    quantity,
    ratio,
    size_change,
    title,
)
from omni_cli.results import BreakEven, Comparison, GateMetric, GateQuality, MeasureMean, Outputs
from omni_cli.stats.verdicts import Pair


@dataclass(frozen=True)
class Labels:
    """Names of the two sides of a comparison, for variants of the same name."""

    a: str
    b: str

    def of(self, pair: Pair) -> tuple[str, str]:
        return (self.a, self.b) if pair.a.name == pair.b.name else (pair.a.name, pair.b.name)


def pair_sentence(pair: Pair, labels: Labels) -> str | None:
    """Format `x ran 1.14 [1.13, 1.15] times faster than y, for +0.7 GiB`; None if end-to-end times show nothing."""
    item = next((item for item in pair.comparisons if item.metric == E2E), None)
    if item is None or item.ratio is None or (item.ci95 is None and item.blocks_needed):
        return None
    name_a, name_b = labels.of(pair)
    if item.verdict == "no difference":
        return f"{name_b} is as fast as {name_a}: any difference is below {limit(item.margin)}"
    if item.verdict == "inconclusive" or item.ci95 is None:
        return f"{name_b} against {name_a} is undecided: {percent(item.ratio - 1)}, {open_end(item)}"
    factor, bounds = item.ratio, item.ci95
    if item.verdict == "faster":
        factor, bounds = 1 / item.ratio, (1 / item.ci95[1], 1 / item.ci95[0])
    peak = next((peak for peak in pair.memory if peak.metric == ALLOCATED and peak.a_bytes != peak.b_bytes), None)
    cost = "" if peak is None else f", for {size_change(peak.a_bytes, peak.b_bytes)}"
    return f"{name_b} ran {ratio(factor, bounds)} times {item.verdict} than {name_a}{cost}"


def work_sentence(pair: Pair) -> str | None:
    """Format `Does other work per run: denoise steps 4 -> 8`; None for equal work."""
    listed = [f"{title(item.field.partition('.')[2])} {one_line(item.a)} -> {one_line(item.b)}" for item in pair.work]
    return f"Does other work per run: {', '.join(listed)}" if listed else None


def break_even_sentence(pair: Pair) -> str | None:
    """Format the gain and the cost of a mode; None if the pair does not differ in a mode."""
    sentences = (_worth_sentence(item, item.break_even) for item in pair.comparisons if item.break_even)
    return next(sentences, None)


def _worth_sentence(comparison: Comparison, item: BreakEven) -> str:
    """Format the gain and the cost of a mode, and the number of requests after which it pays for itself."""
    verdict = comparison.verdict_on(item.mode)
    cost = [] if item.bytes_more is None else [size_change(0, item.bytes_more)]
    if item.preparation_s:
        cost.append(f"{quantity(E2E, item.preparation_s)} to compile or capture")
    for_what = f" for {' and '.join(cost)}" if cost else ""
    if item.requests is None:
        word = "Undecided" if verdict == "inconclusive" else "Not worth it"
        return f"{word}: {item.mode} gains {_gain(item, verdict)} per request{for_what}"
    after = f"; pays for itself after {count(item.requests, 'request')}" if item.preparation_s else ""
    return f"Worth it: {item.mode} gains {_gain(item, verdict)} per request{for_what}{after}"


def _gain(item: BreakEven, verdict: str) -> str:
    """Format `12.1 ms [11.9, 12.3]`; 0 for no difference."""
    if verdict == "no difference":
        return "nothing"
    gained = quantity(E2E, item.gained_s)
    if item.ci95 is None:
        return gained
    low, high = (quantity(E2E, bound, item.gained_s).split(" ")[0] for bound in item.ci95)
    return f"{gained} [{low}, {high}]"


def open_end(item: Comparison | GateMetric) -> str:
    """Return the reason why there is no verdict, and the measurement that would bring one."""
    missing = item.blocks_needed or None
    needed = f"about {count(missing, 'more block')} would decide" if missing else ""
    if item.reason:
        return f"{item.reason}; {needed}" if needed else item.reason
    return needed or "the value lies on the bound, so more blocks would not decide"


def format_quality(item: GateQuality) -> str:
    """Format `worst 41.2, mean 43.1 [41.9, 44.3] of 8; sure for 69% of prompts`; `-` without values."""
    parts = [] if item.worst is None else [f"worst {item.worst:.4g}"]
    if item.spread is not None:
        parts.append(f"mean {format_spread(item.spread)}")
    text = ", ".join(parts) or "-"
    return text if item.sure_share is None else f"{text}; sure for {item.sure_share:.0%} of prompts"


def format_spread(spread: MeasureMean) -> str:
    """Format `43.1 [41.9, 44.3] of 8`, or `43.1 of 2` without an interval."""
    if spread.ci95 is None:
        return f"{spread.mean:.4g} of {spread.n}"
    return f"{spread.mean:.4g} [{spread.ci95[0]:.4g}, {spread.ci95[1]:.4g}] of {spread.n}"


def format_change(metric: GateMetric) -> str:
    """Format `+7.0% [+6.1%, +7.9%]`; more is worse, for rates and sizes too."""
    if metric.change is None:
        return "-"
    if metric.ci95 is None or metric.ci95[0] == metric.ci95[1]:
        return percent(metric.change)
    return percent_interval(metric.change, metric.ci95)


def format_distances(outputs: Outputs) -> str:
    """Format `by up to 0.25, psnr 41.2 dB, ssim 0.9981`; empty for outputs that are equal or have no distance."""
    parts = [] if outputs.max_abs_diff in (None, 0) else [f"by up to {outputs.max_abs_diff:.3g}"]
    for name, value in outputs.measures.items():
        unit = " dB" if name.endswith("_db") else ""
        mean = (outputs.means or {}).get(name)
        spread = f" (mean {format_spread(mean)})" if mean is not None and mean.n > 1 else ""
        parts.append(f"{name.removesuffix('_db').replace('_', ' ')} {value:.4g}{unit}{spread}")
    if outputs.reduced is True and parts:
        parts.append("of smaller copies")
    return ", ".join(parts)
