"""Pairs of variants and gates of any record: tables, the forest plot, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from omni_cli.metrics import E2E
from omni_cli.record import Variant
from omni_cli.report.bench_notes import gate_failure
from omni_cli.report.bench_text import (
    Labels,
    apart,
    break_even_sentence,
    change,
    comparison_rows,
    gate_rows,
    metric_title,
    pair_sentence,
    quality_text,
    shown,
    spread_text,
    work_sentence,
)
from omni_cli.report.bench_units import limit, ratio, title
from omni_cli.report.html.elements import Figure, Paragraph, Part, Table, Tone, Verdict
from omni_cli.report.html.figures import Interval, Trade, drawn_intervals, drawn_trade
from omni_cli.report.html.machine import sentence
from omni_cli.report.units import count
from omni_cli.results import MEASURES, Comparison, GateResult, MeasureMean, MemoryPeak
from omni_cli.stats.output_quality import get_worst
from omni_cli.stats.verdicts import Pair

_GATE_TONES: dict[str, Tone] = {"pass": "good", "inconclusive": "open", "not comparable": "open"}
_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "plain", "inconclusive": "open"}


def get_pairs(comparisons: Sequence[Comparison], memory: Sequence[MemoryPeak] = ()) -> tuple[Pair, ...]:
    """Group the entries by pairs of variants, in order of appearance."""
    by_names: dict[tuple[str, str], list[Comparison]] = {}
    for item in comparisons:
        by_names.setdefault((item.a, item.b), []).append(item)
    peaks: dict[tuple[str, str], list[MemoryPeak]] = {}
    for peak in memory:
        peaks.setdefault((peak.a, peak.b), []).append(peak)
    return tuple(
        Pair(
            Variant(name=names[0]), Variant(name=names[1]), tuple(items), tuple(peaks.get(names, ())),
            work=items[0].work or (), outputs=items[0].outputs,
        )
        for names, items in by_names.items()
    )  # fmt: skip


def page_verdict(gate: GateResult | None, pairs: Sequence[Pair], labels: Labels) -> Verdict | None:
    """Return the gate's verdict, or without a gate that of the end-to-end times. None if nothing is compared."""
    sentences = tuple(_sentences(pairs, labels))
    if gate is not None:
        reason = _gate_sentence(gate)
        return Verdict(f"gate: {gate.verdict}", _GATE_TONES.get(gate.verdict, "bad"), (reason, *sentences))
    verdicts = [item.verdict for pair in pairs for item in pair.comparisons if item.metric == E2E]
    if not verdicts:
        return None
    if len(set(verdicts)) == 1:
        return Verdict(verdicts[0], _TONES[verdicts[0]], sentences)
    return Verdict(f"{len(verdicts)} comparisons", "plain", sentences)


def comparison_parts(name: str, pairs: Sequence[Pair], labels: Labels) -> list[Part]:
    """Return the forest plot of all pairs, one table per pair, and the differences between the variants."""
    parts: list[Part] = [] if (figure := _forest(name, pairs, labels)) is None else [figure]
    parts += _quality_figures(name, pairs, labels)
    for pair in pairs:
        parts.append(_pair_table(pair, labels))
        parts += [Paragraph(text) for text in _pair_notes(pair)]
    return parts


def gate_table(gate: GateResult | None, pairs: Sequence[Pair]) -> Table | None:
    """List the limits; None without a gate, or if it judged nothing."""
    if gate is None or not (gate.metrics or gate.quality):
        return None
    rows = (
        *(
            (name, a, b, change(metric), f"+{limit(metric.limit)}", metric.verdict)
            for metric, name, a, b in gate_rows(gate, pairs)
        ),
        *((item.b, "", "", quality_text(item), item.limit, item.verdict) for item in gate.quality or ()),
    )
    columns = ("Limit on", "A", "B", "Worse by [95% CI]", "Limit", "Verdict")
    return Table("The gate, limit by limit", columns, rows, frozenset({1, 2, 3, 4}))


def _gate_sentence(gate: GateResult) -> str:
    if gate.verdict != "pass":
        message = gate_failure(gate).message
        return sentence(message.removeprefix(f"gate {gate.verdict}: ").removeprefix("gate failed: "))
    parts = [f"{title(item.metric)} {change(item)}, limit +{limit(item.limit)}" for item in gate.metrics]
    parts += [f"{item.limit}: {quality_text(item)}" for item in gate.quality or ()]
    return sentence("within all limits: " + "; ".join(parts))


def _sentences(pairs: Sequence[Pair], labels: Labels) -> list[str]:
    sentences = [text for pair in pairs for text in (pair_sentence(pair, labels), break_even_sentence(pair))]
    return [f"{text}." for text in sentences if text]


def _forest(name: str, pairs: Sequence[Pair], labels: Labels) -> Figure | None:
    rows, numbers = [], []
    for pair in pairs:
        name_a, name_b = labels.of(pair)
        heading = f"{name_b} / {name_a}"
        for item in pair.comparisons:
            if not item.ratio:
                continue
            text = f"{ratio(item.ratio, item.ci95)}  {item.verdict}"
            rows.append(
                Interval(
                    metric_title(item.metric), item.ratio, item.ci95, text, heading, item.verdict != "inconclusive"
                )
            )
            heading = ""
            numbers.append(
                (f"{name_b} / {name_a}", metric_title(item.metric), ratio(item.ratio, item.ci95), item.verdict)
            )
    if not rows:
        return None
    margin = pairs[0].comparisons[0].margin
    text = (
        "Each diamond is the ratio of the medians, the bar its 95% interval. Within the shaded band, "
        f"{limit(margin)} to either side of 1, a ratio counts as no difference."
    )
    table = Table("Ratios", ("Pair", "Metric", "Ratio [95% CI]", "Verdict"), tuple(numbers), frozenset({2}))
    return Figure("How far apart the variants are", text, drawn_intervals(f"{name}-ratios", rows, margin), table)


def _quality_figures(name: str, pairs: Sequence[Pair], labels: Labels) -> list[Figure]:
    """Draw each measure of outputs against the time, one point per pair; equal outputs have no measures."""
    figures = []
    for measure in MEASURES[1:]:
        rows, numbers = [], []
        for pair in pairs:
            item = next((item for item in pair.comparisons if item.metric == E2E), None)
            worst = pair.outputs.measures.get(measure)
            if item is None or item.ratio is None or worst is None:
                continue
            spread = (pair.outputs.means or {}).get(measure, MeasureMean(1, worst))
            name_a, name_b = labels.of(pair)
            rows.append(Trade(name_b, item.ratio, item.ci95, spread.mean, True, False, spread.ci95))
            measured = (ratio(item.ratio, item.ci95), spread_text(spread), f"{worst:.4g}")
            numbers.append((f"{name_b} / {name_a}", *measured))
        if rows:
            rows = [replace(row, on_front=not any(_beats(other, row, measure) for other in rows)) for row in rows]
            heading, label = f"Speed against {title(measure)}", title(measure)
            text = (
                "Each diamond is a variant: its time over that of the other one of its pair, and the mean over the "
                "requests whose outputs differ; the bars are 95% intervals. Further left is faster. The line joins "
                "those that no other beats in both."
            )
            columns = ("Pair", "Time [95% CI]", "Mean [95% CI] of requests", "Worst")
            table = Table(heading, columns, tuple(numbers), frozenset({1, 2, 3}))
            drawing = drawn_trade(f"{name}-{measure}", rows, label, "time over that of the other variant")
            figures.append(Figure(heading, text, drawing, table))
    return figures


def _beats(a: Trade, b: Trade, measure: str) -> bool:
    """True if `a` is at least as fast and as good, and not equal."""
    is_as_good = get_worst([{measure: a.value}, {measure: b.value}])[measure] == b.value
    return a.ratio <= b.ratio and is_as_good and (a.ratio, a.value) != (b.ratio, b.value)


def _pair_table(pair: Pair, labels: Labels) -> Table:
    name_a, name_b = labels.of(pair)
    columns, *rows = comparison_rows(pair, labels)
    return Table(f"{name_b} (B) against {name_a} (A)", columns, tuple(rows), frozenset({1, 2, 3}))


def _pair_notes(pair: Pair) -> list[str]:
    notes = []
    first = next(iter(pair.comparisons), None)
    if first is not None:
        how = "interleaved" if first.interleaved else "one after the other"
        notes.append(f"Measured {how}, {count(first.blocks, 'block')} each.")
    if work := work_sentence(pair):
        notes.append(f"{work}.")
    if pair.differences:
        listed = ", ".join(f"{shown(item.field)} ({shown(item.a)} → {shown(item.b)})" for item in pair.differences)
        notes.append(f"Differs only in: {listed}.")
    if pair.outputs.identical is not None:
        by = apart(pair.outputs)
        notes.append("Outputs are identical." if pair.outputs.identical else f"Outputs differ{by and ' '}{by}.")
    notes += [f"{title(item.metric)}: {item.reason}." for item in pair.comparisons if item.reason]
    return [" ".join(notes)] if notes else []
