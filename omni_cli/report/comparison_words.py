"""Sentences and cells of comparisons, and notes: warnings and the reason of a failure, with the action to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from omni_cli.records.metrics import ALLOCATED, DELETIONS, E2E, RESOLUTION, WER, is_energy
from omni_cli.records.record import num_requests
from omni_cli.records.results import (
    BreakEven,
    Comparison,
    Difference,
    GateMetric,
    GateQuality,
    GateResult,
    MeasureMean,
    Outputs,
)
from omni_cli.report.disturbance_words import disturbance_note
from omni_cli.report.units import (
    count,
    duration,
    limit,
    one_line,
    percent,
    percent_interval,
    quantity,
    ratio,
    size_change,
    title,
)  # fmt: skip
from omni_cli.report.view import Note
from omni_cli.stats.verdicts import ComparisonResult, Pair


class Labels(Struct, frozen=True):
    """Names of the two sides of a comparison, for variants of the same name; with that name if there are `several`."""

    a: str
    b: str
    several: bool = False

    def of(self, pair: Pair) -> tuple[str, str]:
        if pair.a.name != pair.b.name:
            return pair.a.name, pair.b.name
        return (f"{self.a}, {pair.a.name}", f"{self.b}, {pair.a.name}") if self.several else (self.a, self.b)

    def of_all(self, pairs: Sequence[Pair]) -> Labels:
        """Return the names for these pairs, of which no two have the same."""
        return replace(self, several=len(pairs) > 1)


def compared_values(item: Comparison, show: Callable[[float | None], str] | None = None) -> tuple[str, str]:
    """Format the two values that the ratio is of: `0 (as 0.01)` of a metric that is compared as if it were at least
    that, and `662.3 ms (median)` in older records, which have only those of all runs."""
    show = show or (lambda value: quantity(item.metric, value, item.a_centre or item.a_median))
    return _value(item, item.a_median, item.a_centre, show), _value(item, item.b_median, item.b_centre, show)


def _value(
    item: Comparison, median: float | None, centre: float | UnsetType, show: Callable[[float | None], str]
) -> str:
    if item.ratio is None or median is None:
        return show(median)
    if not centre:
        follows = item.ratio_of_medians is not None and math.isclose(item.ratio_of_medians, item.ratio, rel_tol=5e-4)
        return show(median) + ("" if follows else " (median)")
    is_less = median == 0 or median < RESOLUTION.get(item.metric, 0)
    return f"{show(median)} (as {show(centre)})" if is_less and show(median) != show(centre) else show(centre)


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


def words_sentence(pair: Pair, labels: Labels) -> str | None:
    """Format `x says more words wrong than y: 13% against 8%, 1.63 [1.42, 1.87] times as many; 5% against 0% are left
    out`; None if nobody looked at words."""
    items = {item.metric: item for item in pair.comparisons if item.metric in (WER, DELETIONS)}
    item, left_out = items.get(WER), items.get(DELETIONS)
    if item is None or item.ratio is None:
        return None
    name_a, name_b = labels.of(pair)
    how = {"slower": "more words wrong than", "faster": "fewer words wrong than"}.get(
        item.verdict, "as many words wrong as"
    )
    text = f"{name_b} says {how} {name_a}"
    if item.verdict == "inconclusive":
        text = f"Words of {name_b} against those of {name_a} are undecided"
    text += f": {_shares(item)}, {ratio(item.ratio, item.ci95)} times as many"
    return text if left_out is None else f"{text}; {_shares(left_out)} are left out"


def _shares(item: Comparison) -> str:
    return " against ".join(reversed(compared_values(item, lambda value: f"{value or 0:.1%}")))


def work_sentence(pair: Pair) -> str | None:
    """Format `Does other work per run: denoise steps 4 -> 8`; None for equal work."""
    listed = [f"{title(item.field.partition('.')[2])} {one_line(item.a)} -> {one_line(item.b)}" for item in pair.work]
    return f"Does other work per run: {', '.join(listed)}" if listed else None


def break_even_sentence(pair: Pair) -> str | None:
    """Format the gain and the cost of a mode, and the number of requests after which it pays for itself; None if the
    pair does not differ in a mode."""
    found = ((item.break_even, item.verdict_on(item.break_even.mode)) for item in pair.comparisons if item.break_even)
    item, verdict = next(found, (None, ""))
    if item is None:
        return None
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
    needed = f"{_more(item)} would decide" if item.blocks_needed else ""
    if item.reason:
        return f"{item.reason}; {needed}" if needed else item.reason
    return needed or "the value lies on the bound, so more blocks would not decide"


def _more(item: Comparison | GateMetric | GateResult) -> str:
    """Format `about 25 min more`, or a number of blocks whose time is unknown."""
    if item.seconds_needed:
        return f"about {duration(item.seconds_needed)} more"
    return f"about {count(item.blocks_needed or 0, 'more block')}"


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
    if outputs.unmatched or outputs.missing:
        counts = (outputs.unmatched or 0) + (outputs.missing or 0)
        parts.append(f"{counts} of {outputs.compared or counts} of another number, size, length or rate")
    if outputs.reduced is True and parts:
        parts.append("of smaller copies")
    return ", ".join(parts)


def comparison_notes(result: ComparisonResult) -> list[Note]:
    """Return warnings about the verdicts, most important first."""
    notes: list[Note] = []
    if result.unmatched:
        names = ", ".join(f"`{name}`" for name in result.unmatched)
        notes.append(Note(f"only in one of the records, so not compared: {names}"))
    if result.comparisons and not result.interleaved and result.is_comparable:
        message = (
            "measured one after the other: changes of the machine in between affect the ratio, but not its interval"
        )
        command = "loadtest URL_A URL_B" if num_requests(result.pairs[0].a) else "bench --against GIT_REF"
        how = "repeat both, and compare again" if result.tool else f"measure both interleaved: `omni {command}`"
        notes.append(Note(message, f"to rule that out, {how}"))
    pairs = [(item, item.reason) for pair in result.pairs for item in pair.comparisons if is_energy(item.metric)]
    absent = [f"no {item.metric}: {one_line(reason)}" for item, reason in pairs if reason and not item.blocks]
    notes += map(Note, dict.fromkeys(absent))
    return notes + [disturbance_note(item, 0) for pair in result.pairs for item in pair.unequal]


def get_failure(result: ComparisonResult) -> Note:
    """Return the reason for an exit code other than 0, in one sentence."""
    if result.failures:
        return run_failed(result.failures)
    if result.gate is not None:
        note = gate_failure(result.gate)
    elif not result.is_comparable:
        note = not_comparable(result.mismatches)
    elif result.comparisons and all(item.reason and not item.blocks for item in result.comparisons):
        reasons = dict.fromkeys(one_line(item.reason) for item in result.comparisons)
        note = Note("no verdict: " + "; ".join(reasons))
    else:
        note = Note("no verdict: too noisy, or too few blocks", "measure more: raise `--time-budget` or `--num-iters`")
    if result.tool and note.hint:
        return replace(note, hint=f"measure both again with {result.tool}: the same options, and more runs")
    return note


def run_failed(failures: Sequence[str]) -> Note:
    return Note("the run failed: " + "; ".join(failures), "find out why, and measure again")


def gate_failure(gate: GateResult) -> Note:
    """Return the reason why the gate did not pass, in one sentence."""
    if gate.verdict == "failed":
        return run_failed(gate.reasons)
    if gate.verdict == "not comparable":
        return not_comparable(gate.mismatches)
    if gate.verdict == "output mismatch":
        hint = "find out why the outputs changed; `outputs: {max_abs_diff: X}` in the gate file allows rounding"
        return Note("gate failed: " + "; ".join(gate.reasons), hint)
    bad = [metric for metric in gate.metrics if metric.verdict == gate.verdict]
    if gate.verdict == "regression":
        parts = [
            f"`{metric.metric}` is worse by {format_change(metric)}, the limit is {limit(metric.limit)}"
            + (f" ({metric.place})" if metric.place else "")
            for metric in bad
        ]
        return Note("gate failed: " + "; ".join(parts))
    parts = [f"{title(metric.metric)} {_open(metric)}" for metric in bad] + list(gate.reasons)
    more = f"measure {_more(gate)}: raise `--time-budget` or `--num-iters`" if gate.blocks_needed else None
    return Note("gate inconclusive: " + "; ".join(parts), more)


def not_comparable(mismatches: Sequence[Difference]) -> Note:
    """Return the fields that rule out a comparison."""
    fields = {item.field.partition(".")[0] for item in mismatches}
    if "work" in fields:
        hint = "fix the lengths and step counts, so that every run does the same work"
    elif fields == {"workload"}:
        hint = "measure both with the same options of `omni bench`"
    elif fields == {"conditions"}:
        hint = "make them equal, or omit `--strict`"
    else:
        hint = "measure the baseline again here, or compare in one run with `omni bench --against GIT_REF`"
    return Note("not comparable: " + mismatch_list(mismatches), hint)


def mismatch_list(mismatches: Sequence[Difference], most: int = 5, sides: str = "{} against {}") -> str:
    """Format as `workload.batch_size (1 against 8), ...`."""
    listed = [f"{one_line(item.field)} ({_sides(item, sides)})" for item in mismatches[:most]]
    left = len(mismatches) - len(listed)
    return ", ".join([*listed, *([f"{left} more"] if left else [])])


def _sides(item: Difference, sides: str) -> str:
    """Format the two values; a condition of one server has one sentence."""
    is_alone = item.field.startswith("conditions.") and isinstance(item.b, str)
    return one_line(item.b) if is_alone else sides.format(one_line(item.a), one_line(item.b))


def _open(metric: GateMetric) -> str:
    end = metric.reason if metric.blocks_needed else open_end(metric)  # the hint has that
    reason = f" ({end})" if end else ""
    if metric.change is None:
        return reason.strip() or "undecided"
    parts = [f"{format_change(metric)} against a limit of {limit(metric.limit)}"]
    if metric.detectable is not None and metric.detectable > metric.limit:
        below = "twice the time" if metric.detectable >= 1 else f"a worsening below {percent(metric.detectable)}"
        parts.append(f"{below} would not be seen")
    return ", ".join(parts) + reason
