"""Measurements, comparisons and verdicts of a gate as plain text. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_cli.metrics import ALLOCATED, E2E, HOST_RSS, higher_is_better, samples_for
from omni_cli.record import Variant
from omni_cli.report.bench_units import (
    limit,
    percent,
    percent_interval,
    quantity,
    quantity_interval,
    ratio,
    size_change,
    title,
)
from omni_cli.report.tables import aligned
from omni_cli.report.units import count
from omni_cli.results import (
    BreakEven,
    Comparison,
    Difference,
    GateMetric,
    GateQuality,
    GateResult,
    MeasureMean,
    MemoryPeak,
    Outputs,
    Summary,
)
from omni_cli.stats.verdicts import ComparisonResult, Pair

_MAX_DIFFERENCES = 8
_LONG_NAME = 16


@dataclass(frozen=True)
class Labels:
    """Names of the two sides of a comparison, for variants of the same name."""

    a: str
    b: str

    def of(self, pair: Pair) -> tuple[str, str]:
        return (self.a, self.b) if pair.a.name == pair.b.name else (pair.a.name, pair.b.name)


def summary_lines(number: int, variant: Variant, summaries: Mapping[str, Summary], note: str = "") -> list[str]:
    """Format the paragraph of `omni bench` on one variant; `note` describes what ran (`replayed 840/840 steps`)."""
    rows = []
    for metric, summary in summaries.items():
        name = "Latency" if metric == E2E else title(metric)
        rows.append((f"{name} (median, 95% CI):", _median(metric, summary), _percentile(metric, summary, 90)))
        if metric == E2E:
            extremes = " … ".join(quantity(E2E, v, summary.median) for v in (summary.minimum, summary.maximum))
            rows.append(("Range (min … max):", extremes, count(summary.n, "run")))
    peak = variant.memory.peak_allocated_bytes
    if peak:
        rows.append(("Memory (peak allocated):", quantity(ALLOCATED, peak), ""))
    elif variant.memory.peak_host_rss_bytes:
        host = quantity(HOST_RSS, variant.memory.peak_host_rss_bytes)
        rows.append(("Memory (peak host RSS):", host, ""))
    head = f"Benchmark {number}: {variant.name}"
    return [f"{head}   {note}".rstrip(), *aligned(rows, gap=3)]


def comparison_text(result: ComparisonResult, labels: Labels) -> str:
    """Format all pairs as tables, their differences, one sentence per pair, and the gate."""
    if not result.is_comparable:
        return "\n".join(["Not comparable", *difference_lines(result.mismatches)])
    parts = []
    for pair in result.pairs:
        lines = [_heading(pair, labels), *pair_table(pair, labels)]
        lines.append(_differs(pair.differences + result.differences))
        sentences = (work_sentence(pair), _verdict_sentence(pair, labels, result), break_even_sentence(pair))
        parts.append("\n".join([*lines, *filter(None, sentences)]))
    if result.gate is not None:
        parts.append("\n".join(["Gate", *gate_lines(result.gate, result.pairs)]))
    return "\n\n".join(parts)


def pair_table(pair: Pair, labels: Labels) -> list[str]:
    """Format one aligned line per metric: both medians, ratio with interval, verdict; then memory."""
    head, *rows = comparison_rows(pair, labels)
    if max(map(len, labels.of(pair))) > _LONG_NAME:
        head = (head[0], "A", "B", *head[3:])  # the heading names them
    if pair.outputs.identical is not None:
        what = "identical" if pair.outputs.identical else "differ"
        rows.append(("outputs", "", "", "", what))
    by = apart(pair.outputs)
    return [*aligned([head, *rows], right=frozenset({1, 2})), *([f"Outputs differ: {by}"] if by else [])]


def apart(outputs: Outputs) -> str:
    """Format `by up to 0.25, psnr 41.2 dB, ssim 0.9981`; empty for outputs that are equal or have no distance."""
    parts = [] if outputs.max_abs_diff in (None, 0) else [f"by up to {outputs.max_abs_diff:.3g}"]
    for name, value in outputs.measures.items():
        unit = " dB" if name.endswith("_db") else ""
        mean = (outputs.means or {}).get(name)
        spread = f" (mean {spread_text(mean)})" if mean is not None and mean.n > 1 else ""
        parts.append(f"{name.removesuffix('_db').replace('_', ' ')} {value:.4g}{unit}{spread}")
    if outputs.reduced is True and parts:
        parts.append("of smaller copies")
    return ", ".join(parts)


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
    listed = [f"{title(item.field.partition('.')[2])} {shown(item.a)} -> {shown(item.b)}" for item in pair.work]
    return f"Does other work per run: {', '.join(listed)}" if listed else None


def _verdict_sentence(pair: Pair, labels: Labels, result: ComparisonResult) -> str | None:
    """Omit undecided equality if a gate judges something else, because two numbers of missing blocks would confuse."""
    e2e = next((item for item in pair.comparisons if item.metric == E2E), None)
    is_open = e2e is not None and e2e.verdict == "inconclusive"
    return None if is_open and result.gate is not None else pair_sentence(pair, labels)


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


def gate_rows(gate: GateResult, pairs: Sequence[Pair]) -> list[tuple[GateMetric, str, str, str]]:
    """Return each limit with its title and the values of both sides, which are the pairs'."""
    values: dict[tuple[str, str, str], tuple[float | None, float | None]] = {}
    for pair in pairs:
        values |= {(item.metric, item.a, item.b): (item.a_median, item.b_median) for item in pair.comparisons}
        values |= {(peak.metric, peak.a, peak.b): (peak.a_bytes, peak.b_bytes) for peak in pair.memory}
    several = len({(metric.a, metric.b) for metric in gate.metrics if metric.b}) > 1
    rows = []
    for metric in gate.metrics:
        name = f"{metric.b}: {title(metric.metric)}" if several and metric.b else title(metric.metric)
        a, b = values.get((metric.metric, metric.a, metric.b), (None, None))
        rows.append((metric, name, quantity(metric.metric, a), quantity(metric.metric, b, a)))
    return rows


def gate_lines(gate: GateResult, pairs: Sequence[Pair]) -> list[str]:
    """Format one aligned line per limit: from, to, change with interval, limit, verdict."""
    rows = [
        (name, "-" if a == "-" else f"{a} -> {b}", change(metric), f"limit +{limit(metric.limit)}", metric.verdict)
        for metric, name, a, b in gate_rows(gate, pairs)
    ]
    rows += [(item.limit, quality_text(item), "", "", item.verdict) for item in gate.quality or ()]
    return [*aligned(rows, gap=3), *(f"  {reason}" for reason in gate.reasons)]


def quality_text(item: GateQuality) -> str:
    """Format `worst 41.2, mean 43.1 [41.9, 44.3] of 8; sure for 69% of prompts`; `-` without values."""
    parts = [] if item.worst is None else [f"worst {item.worst:.4g}"]
    if item.spread is not None:
        parts.append(f"mean {spread_text(item.spread)}")
    text = ", ".join(parts) or "-"
    return text if item.sure_share is None else f"{text}; sure for {item.sure_share:.0%} of prompts"


def spread_text(spread: MeasureMean) -> str:
    """Format `43.1 [41.9, 44.3] of 8`, or `43.1 of 2` without an interval."""
    if spread.ci95 is None:
        return f"{spread.mean:.4g} of {spread.n}"
    return f"{spread.mean:.4g} [{spread.ci95[0]:.4g}, {spread.ci95[1]:.4g}] of {spread.n}"


def change(metric: GateMetric) -> str:
    """Format `+7.0% [+6.1%, +7.9%]`; more is worse, for rates and sizes too."""
    if metric.change is None:
        return "-"
    if metric.ci95 is None or metric.ci95[0] == metric.ci95[1]:
        return percent(metric.change)
    return percent_interval(metric.change, metric.ci95)


def difference_lines(differences: Sequence[Difference]) -> list[str]:
    """Format `  environment.versions.torch   2.12.0   2.13.0`, aligned."""
    rows = [(shown(item.field), shown(item.a), shown(item.b)) for item in differences[:_MAX_DIFFERENCES]]
    left = len(differences) - len(rows)
    return [*aligned(rows, gap=3), *([f"  and {left} more"] if left else [])]


def _heading(pair: Pair, labels: Labels) -> str:
    name_a, name_b = labels.of(pair)
    first = next(iter(pair.comparisons), None)
    if first is None:
        return f"{name_b} against {name_a}"
    how = "interleaved" if first.interleaved else "one after the other"
    return f"{name_b} (B) against {name_a} (A), {count(first.blocks, 'block')} each, measured {how}"


def comparison_rows(pair: Pair, labels: Labels) -> list[tuple[str, ...]]:
    """Return the columns of a pair's table, then one row per metric and per memory peak."""
    head = ("Metric", *labels.of(pair), "B / A [95% CI]", "Verdict")
    times = [
        (
            metric_title(item.metric),
            quantity(item.metric, item.a_median),
            quantity(item.metric, item.b_median, item.a_median),
            ratio(item.ratio, item.ci95),
            item.verdict,
        )
        for item in pair.comparisons
    ]
    memory = [
        (
            title(peak.metric),
            quantity(peak.metric, peak.a_bytes),
            quantity(peak.metric, peak.b_bytes),
            _memory_change(peak),
            peak.verdict,
        )
        for peak in pair.memory
    ]
    return [head, *times, *memory]


def metric_title(metric: str) -> str:
    return title(metric) + (" (more is better)" if higher_is_better(metric) else "")


def _memory_change(peak: MemoryPeak) -> str:
    """Format `1.037 (+1.0 GiB)`; with bounds `1.037 [0.98, 1.09]`."""
    if peak.bounds:
        return ratio(peak.ratio, peak.bounds)
    return f"{peak.ratio:.3f} ({size_change(peak.a_bytes, peak.b_bytes)})"


def _differs(differences: Sequence[Difference]) -> str:
    if not differences:
        return "No setting differs"
    listed = [f"{shown(item.field)} ({shown(item.a)} -> {shown(item.b)})" for item in differences[:_MAX_DIFFERENCES]]
    left = len(differences) - len(listed)
    return "Differs only in: " + ", ".join([*listed, *([f"{left} more"] if left else [])])


def shown(value: object) -> str:
    """Format a value of a record on one line of limited length."""
    text = value if isinstance(value, str) else _plain(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _median(metric: str, summary: Summary) -> str:
    median = quantity(metric, summary.median)
    if summary.ci95 is None:
        return f"{median}  [n/a]"
    return f"{median}  {quantity_interval(metric, summary.ci95, summary.median)}"


def _percentile(metric: str, summary: Summary, percentile: int) -> str:
    value = summary.percentile(percentile)
    if value is None:
        return f"p{percentile} n/a (n<{samples_for(percentile)})"
    return f"p{percentile} {quantity(metric, value, summary.median)}"
