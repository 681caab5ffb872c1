"""Variants and records against each other as a view: ratios, verdicts, and the limits of a gate."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from omni_cli.core.errors import ExitCode
from omni_cli.records.metrics import E2E, higher_is_better
from omni_cli.records.record import Variant
from omni_cli.records.results import (
    MEASURES,
    CompareRecord,
    Comparison,
    Difference,
    GateResult,
    MeasureMean,
    MemoryPeak,
    RecordOrigin,
)
from omni_cli.report.comparison_words import (
    Labels,
    break_even_sentence,
    compared_values,
    comparison_notes,
    format_change,
    format_distances,
    format_quality,
    format_spread,
    gate_failure,
    get_failure,
    open_end,
    pair_sentence,
    words_sentence,
    work_sentence,
)
from omni_cli.report.units import (
    count,
    limit,
    metric_title,
    one_line,
    percent,
    quantity,
    ratio,
    size_change,
    title,
    word_for,
)
from omni_cli.report.view import (
    Case,
    Changes,
    ChartRow,
    Element,
    Figure,
    Limit,
    LimitList,
    Note,
    Outcome,
    Paragraph,
    Rows,
    Section,
    Table,
    Tone,
    Trade,
    Trades,
    Verdict,
    View,
    sentence,
)
from omni_cli.stats.output_quality import get_worst
from omni_cli.stats.verdicts import ComparisonResult, Pair

_LONG_NAME = 16
_MAX_MISMATCHES = 8
_GATE_TONES: dict[str, Tone] = {"pass": "good", "inconclusive": "open", "not comparable": "open"}
_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "plain", "inconclusive": "open"}


def comparison_view(result: ComparisonResult, labels: Labels, notes: Sequence[Note] = ()) -> View:
    """Return the view of a comparison; `notes` are further ones, on the machine."""
    failure = None if result.exit_code == ExitCode.OK else get_failure(result)
    verdict = comparison_verdict(result.gate, result.pairs, labels) or Verdict("nothing compared", "open")
    word = f"gate: {result.gate.verdict}" if result.gate else ""
    if result.failures:
        verdict = Verdict(word or "failed", "bad", tuple(map(sentence, result.failures)))
    elif not result.is_comparable and failure is not None:
        verdict = Verdict("not comparable", "open", (f"{failure.message}.",))
    if result.differences or any(pair.a.name == pair.b.name for pair in result.pairs):  # of two records
        verdict = replace(verdict, sentences=(*verdict.sentences, f"{Changes(_changed_rows(result)).sentence()}."))
    headline = f"omni {word}" if word else "omni compare"
    if result.gate is None and failure is not None and (result.failures or not result.is_comparable):
        headline += ": failed" if result.failures else ": not comparable"
    return View(
        kind="Comparison",
        title=f"{one_line(labels.b)} against {one_line(labels.a)}",
        details=f"{count(len(result.pairs), 'pair')} of variants",
        verdict=verdict,
        headline=headline,
        failure=failure,
        notes=(*comparison_notes(result), *notes),
        sections=[
            Section("Comparison", comparison_parts(result, labels)),
            Section("What differs", [get_mismatches(result, labels), _differences(result.differences, labels)]),
        ],
        cases=_get_cases(result, failure),
    )


def view_of_document(record: CompareRecord) -> View:
    """Return the view of what `omni compare --json` printed."""
    result = ComparisonResult(
        get_pairs(record.comparisons, record.memory),
        record.mismatches,
        record.differences,
        record.unmatched,
        record.failures,
        record.gate,
        is_saved=True,
    )
    return replace(comparison_view(result, Labels(record.a.path, record.b.path)), created=record.b.created)


def get_pairs(comparisons: Sequence[Comparison], memory: Sequence[MemoryPeak] = ()) -> tuple[Pair, ...]:
    """Group the entries by pairs of variants, in order of appearance."""
    by_names: dict[tuple[str, str], list[Comparison]] = {}
    for item in comparisons:
        by_names.setdefault((item.a, item.b), []).append(item)
    return tuple(
        Pair(
            Variant(name=names[0]),
            Variant(name=names[1]),
            tuple(items),
            tuple(peak for peak in memory if (peak.a, peak.b) == names),
            work=items[0].work or (),
            outputs=items[0].outputs,
        )
        for names, items in by_names.items()
    )


def comparison_verdict(gate: GateResult | None, pairs: Sequence[Pair], labels: Labels) -> Verdict | None:
    """Return the gate's verdict, or without a gate that of the end-to-end times. None if nothing is compared."""
    found = [text for pair in pairs for text in _sentences(pair, labels.of_all(pairs))]
    sentences = tuple(f"{text}." for text in found if text)
    if gate is not None:
        return Verdict(
            f"gate: {gate.verdict}", _GATE_TONES.get(gate.verdict, "bad"), (_gate_sentence(gate), *sentences)
        )
    verdicts = [item.verdict for pair in pairs for item in pair.comparisons if item.metric == E2E]
    if not verdicts:
        return None
    if len(set(verdicts)) == 1:
        return Verdict(verdicts[0], _TONES[verdicts[0]], sentences)
    return Verdict(f"{len(verdicts)} comparisons", "plain", sentences)


def _sentences(pair: Pair, labels: Labels) -> tuple[str | None, ...]:
    return pair_sentence(pair, labels), words_sentence(pair, labels), break_even_sentence(pair)


def comparison_parts(result: ComparisonResult, labels: Labels) -> list[Element | None]:
    """Return the limits, the forest plot of all pairs, and per pair a table, its differences and its sentences."""
    if not result.is_comparable:
        return []
    pairs, labels = result.pairs, labels.of_all(result.pairs)
    parts: list[Element | None] = [get_limits(result.gate, pairs), _forest(pairs, labels)]
    parts += _quality_figures(pairs, labels)
    for pair in pairs:
        parts += [_pair_table(pair, labels), *_pair_notes(pair, result)]
        e2e = next((item for item in pair.comparisons if item.metric == E2E), None)
        # Two numbers of missing blocks would confuse, where a gate judges something else.
        is_open = e2e is not None and e2e.verdict == "inconclusive" and result.gate is not None
        sentences = _sentences(pair, labels)[1 if is_open else 0 :]
        parts += [Paragraph(text, only="text") for text in sentences if text]  # a page's verdict has them
    return parts


def get_limits(gate: GateResult | None, pairs: Sequence[Pair]) -> LimitList | None:
    """List the limits with the values of both sides, which are the pairs'; None without a gate, or if it judged
    nothing."""
    if gate is None:
        return None
    values: dict[tuple[str, str, str], tuple[str, str]] = {}
    for pair in pairs:
        values |= {(item.metric, item.a, item.b): compared_values(item) for item in pair.comparisons}
        values |= {(peak.metric, peak.a, peak.b): _sizes(peak) for peak in pair.memory}
    several = len({(metric.a, metric.b) for metric in gate.metrics if metric.b}) > 1
    rows = []
    for metric in gate.metrics:
        case = f"{metric.b}: {title(metric.metric)}" if metric.b else title(metric.metric)
        shown = values.get((metric.metric, metric.a, metric.b), ("-", "-"))
        change = format_change(metric)
        if higher_is_better(metric.metric) and metric.change is not None:
            change = f"{percent(1 / (1 + metric.change) - 1)}, worse by {change}"
        bound = f"+{limit(metric.limit)}"
        name = case if several else title(metric.metric)
        rows.append(Limit(name, case, *shown, change, bound, metric.verdict, open_end(metric)))
    for item in gate.quality or ():
        rows.append(Limit(item.limit, f"{item.b}: {item.limit}", "", "", format_quality(item), "", item.verdict))
    return LimitList("The gate, limit by limit", tuple(rows), gate.reasons) if rows or gate.reasons else None


def _get_cases(result: ComparisonResult, failure: Note | None) -> tuple[Case, ...]:
    """Return a case per limit, or a single one if there is no limit or no comparison.

    A regression is a failure. A limit that is inconclusive or was not judged is an error, because dashboards count
    what is skipped as passed.
    """
    gate = result.gate
    if gate is None or gate.verdict in ("failed", "not comparable"):
        outcome: Outcome | None = "error" if failure else None
        word = "failed" if result.failures else "inconclusive" if result.is_comparable else "not comparable"
        return (Case("omni.gate", "gate" if gate else "comparable", outcome, word, failure.message if failure else ""),)
    limits = get_limits(gate, result.pairs)
    cases = [_limit_case(item) for item in limits.rows] if limits else []
    if gate.max_abs_diff is not None or (gate.reasons and not gate.quality):
        differ = gate.verdict == "output mismatch"
        outcome = "failure" if differ else "error" if gate.reasons else None
        word = "output mismatch" if differ else "inconclusive"
        name = "outputs" if gate.max_abs_diff is not None else "variants"
        cases.append(Case("omni.gate", name, outcome, word, "; ".join(gate.reasons)))
    return tuple(cases)


def _limit_case(item: Limit) -> Case:
    outcome: Outcome | None = "error" if item.verdict == "inconclusive" else "failure"
    text = f"{item.a} -> {item.b}, {item.change}, limit {item.limit}" if item.a else item.change
    if outcome == "error":
        text = f"neither a pass nor a regression: {text}" + (f": {item.reason}" if item.reason else "")
    return Case("omni.gate", item.case, None if item.verdict == "pass" else outcome, item.verdict, text)


def _gate_sentence(gate: GateResult) -> str:
    if gate.verdict != "pass":
        message = gate_failure(gate).message
        return sentence(message.removeprefix(f"gate {gate.verdict}: ").removeprefix("gate failed: "))
    parts = [f"{title(item.metric)} {format_change(item)}, limit +{limit(item.limit)}" for item in gate.metrics]
    parts += [f"{item.limit}: {format_quality(item)}" for item in gate.quality or ()]
    return sentence("Within all limits: " + "; ".join(parts))


def _pair_table(pair: Pair, labels: Labels) -> Table:
    """List both values, their ratio with interval and verdict of each metric; then memory and outputs."""
    names = name_a, name_b = labels.of(pair)
    rows: list[tuple[str, ...]] = [
        (
            metric_title(item.metric),
            *compared_values(item),
            ratio(item.ratio, item.ci95),
            word_for(item.metric, item.verdict),
        )
        for item in pair.comparisons
    ]
    for peak in pair.memory:
        change = f"{peak.ratio:.3f} ({size_change(peak.a_bytes, peak.b_bytes)})"
        if peak.bounds:
            change = ratio(peak.ratio, peak.bounds)
        rows.append((title(peak.metric), *_sizes(peak), change, peak.verdict))
    if pair.outputs.identical is not None:
        rows.append(("outputs", "", "", "", "identical" if pair.outputs.identical else "differ"))
    caption = f"{name_b} (B) against {name_a} (A)"
    for item in pair.comparisons[:1]:
        how = "interleaved" if item.interleaved else "one after the other"
        caption += f", centres of {count(item.blocks, 'block')} each, measured {how}"
    columns = ("A", "B") if max(map(len, names)) > _LONG_NAME else names  # the caption names them
    head = ("Metric", *columns, "B / A [95% CI]", "Verdict")
    return Table(caption, head, tuple(rows), frozenset({1, 2}), lead=caption)


def _changed_rows(result: ComparisonResult, *pairs: Pair) -> tuple[tuple[str, str, str], ...]:
    """List what differs within a pair, or within all, and between the records."""
    found = [item for pair in pairs or result.pairs for item in pair.differences]
    differences = dict.fromkeys(
        (item.field, one_line(item.a), one_line(item.b)) for item in (*found, *result.differences)
    )
    return tuple((one_line(field), a, b) for field, a, b in differences)


def _sizes(peak: MemoryPeak) -> tuple[str, str]:
    return quantity(peak.metric, peak.a_bytes), quantity(peak.metric, peak.b_bytes)


def _pair_notes(pair: Pair, result: ComparisonResult) -> list[Element]:
    reasons = [f"{title(item.metric)}: {item.reason}" for item in pair.comparisons if item.reason]
    parts: list[Element] = [Paragraph(". ".join(reasons), only="page")] if reasons else []
    if by := format_distances(pair.outputs):
        parts.append(Paragraph(f"Outputs differ: {by}"))
    rows = _changed_rows(result, pair)
    parts.append(Changes(rows, only=None if pair.differences else "text"))
    if work := work_sentence(pair):
        parts.append(Paragraph(work))
    return parts


def get_mismatches(result: ComparisonResult, labels: Labels) -> Table | None:
    """List the differences that rule out a comparison, if there are any."""
    table = _differences(result.mismatches, labels)
    caption = "Differences that rule out a comparison"
    return table and replace(table, caption=caption, only=None, lead="Not comparable", most=_MAX_MISMATCHES)


def _differences(differences: Sequence[Difference], labels: Labels) -> Table | None:
    rows = tuple((one_line(item.field), one_line(item.a), one_line(item.b)) for item in differences)
    return Table("What may differ", ("Field", labels.a, labels.b), rows, only="page") if rows else None


def _forest(pairs: Sequence[Pair], labels: Labels) -> Figure | None:
    rows, numbers = [], []
    for pair in pairs:
        heading = " / ".join(reversed(labels.of(pair)))
        known = [item for item in pair.comparisons if item.ratio]
        for item in known:
            word = word_for(item.metric, item.verdict)
            cells = (metric_title(item.metric), ratio(item.ratio, item.ci95), word)
            numbers.append((heading, *cells))
            rows.append(
                ChartRow(
                    cells[0],
                    f"{cells[1]}  {word}",
                    heading if item is known[0] else "",
                    centre=item.ratio,
                    bounds=item.ci95,
                    colour="muted" if item.verdict == "inconclusive" else "accent",
                )
            )
    if not rows:
        return None
    margin = next(item.margin for pair in pairs for item in pair.comparisons)
    text = (
        "Each diamond is the ratio, B over A, of centres of the same blocks where both ran interleaved; the bar is its "
        "95% interval. Within the shaded band, "
        f"{limit(margin)} to either side of 1, a ratio counts as no difference."
    )
    table = Table("Ratios", ("Pair", "Metric", "Ratio [95% CI]", "Verdict"), tuple(numbers), frozenset({2}))
    chart = Rows(tuple(rows), "ratio, logarithmic; 1 is no difference", margin)
    return Figure("How far apart the variants are", text, chart, table)


def _quality_figures(pairs: Sequence[Pair], labels: Labels) -> list[Figure]:
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
            measured = (ratio(item.ratio, item.ci95), format_spread(spread), f"{worst:.4g}")
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
            chart = Trades(tuple(rows), label, "time over that of the other variant")
            figures.append(Figure(heading, text, chart, table))
    return figures


def _beats(a: Trade, b: Trade, measure: str) -> bool:
    """True if `a` is at least as fast and as good, and not equal."""
    is_as_good = get_worst([{measure: a.value}, {measure: b.value}])[measure] == b.value
    return a.ratio <= b.ratio and is_as_good and (a.ratio, a.value) != (b.ratio, b.value)


def compare_document(result: ComparisonResult, a: RecordOrigin, b: RecordOrigin) -> CompareRecord:
    """Return the document of `omni compare --json`; `a` and `b` are the files of the records."""
    shown = result.pairs if result.is_comparable else ()
    return CompareRecord(
        a=a,
        b=b,
        comparable=result.is_comparable,
        mismatches=result.mismatches,
        differences=(
            *result.differences,
            *(item for pair in result.pairs for item in (*pair.work, *pair.differences)),
        ),
        unmatched=result.unmatched,
        failures=result.failures,
        comparisons=tuple(item for pair in shown for item in pair.comparisons),
        memory=tuple(peak for pair in shown for peak in pair.memory),
        gate=result.gate,
    )
