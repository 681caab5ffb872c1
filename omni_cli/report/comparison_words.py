"""Sentences and cells of comparisons, and notes: warnings and the reason of a failure, with the action to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omni_cli.records.metrics import ALLOCATED, DELETIONS, E2E, WER, is_energy
from omni_cli.records.record import Record, num_requests
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
from omni_cli.report.units import count, limit, one_line, percent, percent_interval, quantity, ratio, size_change, title
from omni_cli.report.view import Note
from omni_cli.stats.comparable import Disturbance
from omni_cli.stats.verdicts import ComparisonResult, Pair


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
    return f"{item.b_median or 0:.1%} against {item.a_median or 0:.1%}"


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
    return notes + [_disturbance(item, 0) for pair in result.pairs for item in pair.unequal]


def disturbance_warnings(disturbances: Sequence[Disturbance], record: Record) -> list[Note]:
    """Return warnings about the machine or the client during the measurement, with the action to take."""
    looked = record.utilisation
    notes = [_disturbance(item, 0 if looked is None else looked.usable_cores) for item in disturbances]
    if looked is not None and looked.error is not None:
        notes.append(Note(f"only part of the machine's load was recorded: {one_line(looked.error)}"))
    return notes


def _disturbance(item: Disturbance, cores: int) -> Note:
    causes = ", ".join(_CAUSES.get(cause, one_line(cause)) for cause in item.causes)
    kind = "thermal" if "thermal" in item.causes else item.kind
    message, hint = _DISTURBANCES.get(kind, _DISTURBANCES["slow device"])
    filled = message.format(
        variant=item.variant,
        other=item.other,
        theirs=item.share,
        requests=percent(item.share).lstrip("+"),
        lag=quantity("lag_s", item.amount),
        amount=item.amount,
        tokens=f"{item.amount:.4g} token" + ("" if item.amount == 1 else "s"),
        of_cores=count(cores, "core"),
        time=f"in {item.share:.0%} of the time",
        device=one_line(item.device),
        causes=causes,
        highest="the highest clock in this record" if item.is_of_record else "its highest clock",
    )
    return Note(filled, hint, label="Note" if kind in ("power limit", "unequal clocks", "one order") else "Warning")


_THROTTLING = "{device} was throttled {time}, by {causes}: {amount:.0%} of {highest}"
_DISTURBANCES = {
    "late client": (
        "{variant}: the client was late with {requests} of the requests, by up to {lag}, which is in their times",
        "lower the rate, or measure from an idle machine",
    ),
    "no usage": ("{variant}: the server reports no token counts: no tpot, no tokens per second", None),
    "bursts": (
        "{variant}: most text chunks arrived together: ttft and itl are those of bursts",
        "the server sends them together, or this machine was too busy to read them one by one",
    ),
    "short answers": (
        "{variant}: {requests} of the answers are shorter than asked: {tokens} on average",
        "`--ignore-eos` asks a server that can for whole ones",
    ),
    "cut window": (
        "{variant}: its last window was interrupted: {theirs:.0f} of its requests had no answer yet, for up to {lag}, "
        "and are in no figure",
        None,
    ),
    "silent": (
        "{variant}: {theirs:.0f} of {amount:.0f} answers are silent: they have no audible sample, and miss a limit on "
        "`heard`",
        None,
    ),
    "assumed rate": (
        "{variant}: nothing states the sample rate of its speech: 24 kHz mono is assumed",
        "pass the rate with `--sample-rate`",
    ),
    "busy client": (
        "the client used a whole core {time}: the times may be its own",
        "send fewer requests at once, or measure from several machines",
    ),
    "neighbour": (
        "a noisy neighbour: other programs used {amount:.1f} of {of_cores} {time}",
        "stop them, or measure where nothing else runs: times are longer and intervals wider",
    ),
    "stolen": (
        "the machine's host gave {amount:.1f} of {of_cores} to others {time}",
        "measure on a machine with dedicated cores, or at another time",
    ),
    "quota": (
        "the container's processor quota ran out {time}, and stopped its threads",
        "raise the quota, or use fewer threads: `OMP_NUM_THREADS=N omni bench ...`",
    ),
    "slow processor": (
        "the processor was throttled {time}: {amount:.0%} of its fastest clock",
        "let it cool down, and set the performance governor: `cpupower frequency-set -g performance`",
    ),
    "thermal": (_THROTTLING, "let it cool down, then measure with a fixed clock: `nvidia-smi --lock-gpu-clocks=MHZ`"),
    "slow device": (_THROTTLING, "find out why, or measure with a fixed clock: `nvidia-smi --lock-gpu-clocks=MHZ`"),
    "power limit": (
        "{device} was at its power limit {time}, at {amount:.0%} of {highest}: its full speed for this work",
        None,
    ),
    "unequal clocks": (
        "{device} ran {variant} at {amount:,.0f} MHz and {other} at {theirs:,.0f} MHz: the ratio holds at these",
        "to compare the work alone, fix a clock that both can hold: `nvidia-smi --lock-gpu-clocks=MHZ`",
    ),
    "one order": (
        "{variant} was loaded first, which alone can make it 0.6 to 2 % slower on a CPU",
        "16 blocks or more are measured in both orders of loading: raise `--time-budget` or `--num-iters`",
    ),
    "repeated prompts": (
        "{variant}: {theirs:.0f} distinct requests were sent again and again, and it answers repeated prompts "
        "{amount:.3g} times as fast as new ones",
        "its times are those of a prefix cache: send a file with more requests than the test needs",
    ),
    "seen prompts": (
        "{variant}: it answers the prompts of this run {amount:.3g} times as fast as new ones: it has seen them before",
        "its times are those of a prefix cache: give each run another `--seed`, or restart the server",
    ),
    "warming up": (
        "{variant}: its first windows took {amount:.3g} times as long as the later ones: it was not warm at this load",
        "all times can be too long: raise `--num-iters-warmup`",
    ),
    "estimated tpot": (
        "{variant}: a chunk has {tokens}, and nothing tells how many the first one has",
        "tpot counts them by their characters; a server with `continuous_usage_stats` tells them",
    ),
    "prompt tokens": (
        "{variant} counts {tokens} per prompt, {other} {theirs:.5g}: another chat template or tokenizer, or "
        "prompts are cut",
        "it can change every time, ttft most: give both the same template and context length",
    ),
    "answer tokens": (
        "{variant} answers with {tokens}, {other} with {theirs:.5g}",
        "it changes e2e and rates; tpot and ttft are comparable: ask both for answers of the same length",
    ),
    "bundled": (
        "{variant} sends {tokens} per chunk, {other} {theirs:.3g}",
        "it changes itl, and ttft by the time of a chunk's tokens; tpot and e2e are comparable",
    ),
    "parallel limit": (
        "unequal limits of requests that are served at once, in which 0 is none: {amount:.0f} of {variant}, "
        "{theirs:.0f} of {other}",
        "it changes ttft, e2e and rates at this load: give both the same limit, or compare at a lower load",
    ),
}
_CAUSES = {
    "power_cap": "its power limit",
    "thermal": "its temperature",
    "power_brake": "the power supply's brake",
    "hw_slowdown": "a slowdown by the hardware",
}


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
    needed = gate.blocks_needed
    more = f"measure about {count(needed, 'more block')}: raise `--time-budget` or `--num-iters`" if needed else None
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


def mismatch_list(mismatches: Sequence[Difference]) -> str:
    """Format as `workload.batch_size (1 against 8), ...`."""
    listed = [f"{one_line(item.field)} ({_sides(item)})" for item in mismatches[:5]]
    left = len(mismatches) - len(listed)
    return ", ".join([*listed, *([f"{left} more"] if left else [])])


def _sides(item: Difference) -> str:
    """Format the two values; a condition of one server has one sentence."""
    is_alone = item.field.startswith("conditions.") and isinstance(item.b, str)
    return one_line(item.b) if is_alone else f"{one_line(item.a)} against {one_line(item.b)}"


def _open(metric: GateMetric) -> str:
    if metric.change is None:
        return f"({open_end(metric)})"
    parts = [f"{format_change(metric)} against a limit of {limit(metric.limit)}"]
    if metric.detectable is not None and metric.detectable > metric.limit:
        below = "twice the time" if metric.detectable >= 1 else f"a worsening below {percent(metric.detectable)}"
        parts.append(f"{below} would not be seen")
    return f"{', '.join(parts)} ({open_end(metric)})"
