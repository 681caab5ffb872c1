"""What goes to stderr beside a comparison: warnings that end in an action, and the sentence of a failed gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_cli.errors import ExitCode
from omni_cli.record import Record
from omni_cli.report.bench_server import is_server, num_requests, server_warnings
from omni_cli.report.bench_text import change, open_end, shown
from omni_cli.report.bench_units import limit, percent, title
from omni_cli.report.units import count
from omni_cli.stats.comparable import Difference
from omni_cli.stats.disturbance import Disturbance, disturbances
from omni_cli.stats.findings import Findings
from omni_cli.stats.gate import EXIT_CODES, Gate, GateMetric


@dataclass(frozen=True)
class Note:
    """A warning, or the reason of a failure, with what to do about it."""

    message: str
    hint: str | None = None


def warnings(findings: Findings) -> list[Note]:
    """What a reader of the verdicts has to know, most important first."""
    notes = [Note(f"{failure}; what it measured before is counted", None) for failure in findings.failures]
    if findings.mismatches and findings.is_comparable:
        message = "the variants did not do the same work: " + mismatch_list(findings.mismatches)
        notes.append(Note(message, "compare times only where the work is equal"))
    if findings.unmatched:
        names = ", ".join(f"`{name}`" for name in findings.unmatched)
        notes.append(Note(f"only in one of the records, so not compared: {names}"))
    if findings.comparisons and not findings.interleaved and findings.is_comparable:
        message = "measured one after the other: what the machine did in between is in the ratio, not in its interval"
        turns = "--url A --url B" if num_requests(findings.pairs[0].a) else "--against GIT_REF"
        notes.append(Note(message, f"to rule that out, measure both in turns: `omni bench {turns}`"))
    return notes


def machine_warnings(record: Record) -> list[Note]:
    """What the machine, or a client, did beside the measurement, with what to do about it."""
    of_client = [Note(*entry) for entry in server_warnings(record)] if is_server(record) else []
    found = record.utilisation
    if found is None:
        return of_client
    # A server on the same machine is no stranger.
    kept = [item for item in disturbances(found) if item.kind != "neighbour" or not is_server(record)]
    notes = [_disturbance(item, found.usable_cores) for item in kept]
    if found.error is not None:
        notes.append(Note(f"how busy the machine was is known in part only: {shown(found.error)}"))
    return [*of_client, *notes]


def _disturbance(item: Disturbance, cores: int) -> Note:
    time = f"in {item.share:.0%} of the time"
    match item.kind:
        case "neighbour":
            message = f"a noisy neighbour: other programs used {item.amount:.1f} of {count(cores, 'core')} {time}"
            return Note(message, "end them, or measure where nothing else runs: times are longer and intervals wider")
        case "stolen":
            message = f"the machine's host gave {item.amount:.1f} of {count(cores, 'core')} to others {time}"
            return Note(message, "measure on a machine that shares no cores, or at another time")
        case "quota":
            message = f"the container's processor quota ran out {time}, and stopped its threads"
            return Note(message, "give the container more, or use fewer threads: `OMP_NUM_THREADS=N omni bench ...`")
        case "slow processor":
            message = f"the processor was throttled {time}: {item.amount:.0%} of its fastest clock"
            return Note(
                message, "let it cool down, and set the performance governor: `cpupower frequency-set -g performance`"
            )
    causes = ", ".join(_CAUSES.get(cause, shown(cause)) for cause in item.causes)
    message = f"{shown(item.device)} was throttled {time}, by {causes}: {item.amount:.0%} of its fastest clock"
    if "thermal" in item.causes:
        return Note(message, "let it cool down, then measure with a fixed clock: `nvidia-smi --lock-gpu-clocks=MHZ`")
    return Note(message, "measure with a fixed clock that its power limit allows: `nvidia-smi --lock-gpu-clocks=MHZ`")


_CAUSES = {
    "power_cap": "its power limit",
    "thermal": "its temperature",
    "power_brake": "the power supply's brake",
    "hw_slowdown": "a slowdown by the hardware",
}


def gate_failure(gate: Gate) -> Note:
    """Why the gate did not pass, in one sentence."""
    if gate.verdict == "failed":
        return Note("the run failed: " + "; ".join(gate.reasons), "mend the variant, then measure again")
    if gate.verdict == "not comparable":
        return not_comparable(gate.mismatches)
    if gate.verdict == "output mismatch":
        hint = "find out why the outputs changed; `outputs: {max_abs_diff: X}` in the gate file allows rounding"
        return Note("gate failed: " + "; ".join(gate.reasons), hint)
    bad = [metric for metric in gate.metrics if metric.verdict == gate.verdict]
    if gate.verdict == "regression":
        parts = [
            f"`{metric.metric}` is worse by {change(metric)}, the limit is {limit(metric.limit)}"
            + (f" ({metric.place})" if metric.place else "")
            for metric in bad
        ]
        return Note("gate failed: " + "; ".join(parts))
    parts = [f"{title(metric.metric)} {_open(metric)}" for metric in bad] + list(gate.reasons)
    needed = gate.blocks_needed
    more = f"measure about {count(needed, 'more block')}: raise `--time-budget` or `--num-iters`" if needed else None
    return Note("gate inconclusive: " + "; ".join(parts), more)


def not_comparable(mismatches: Sequence[Difference]) -> Note:
    """Which fields forbid a comparison."""
    fields = {item.field.partition(".")[0] for item in mismatches}
    if "work" in fields:
        hint = "fix the lengths and step counts, so that every run does the same work"
    elif fields == {"workload"}:
        hint = "measure both with the same options of `omni bench`"
    else:
        hint = "measure the baseline again here, or compare in one run with `omni bench --against GIT_REF`"
    return Note("not comparable: " + mismatch_list(mismatches), hint)


def mismatch_list(mismatches: Sequence[Difference]) -> str:
    """`workload.batch_size (1 against 8), ...`."""
    listed = [f"{shown(item.field)} ({shown(item.a)} against {shown(item.b)})" for item in mismatches[:5]]
    left = len(mismatches) - len(listed)
    return ", ".join([*listed, *([f"{left} more"] if left else [])])


def exit_code(findings: Findings) -> ExitCode:
    """The process's exit code: the gate's; without one, 4 where nothing may be compared, 3 where nothing is decided."""
    if findings.gate is not None:
        return EXIT_CODES[findings.gate.verdict]
    if not findings.is_comparable:
        return ExitCode.NOT_COMPARABLE
    comparisons = findings.comparisons
    if findings.pairs and all(item.verdict == "inconclusive" for item in comparisons):
        return ExitCode.INCONCLUSIVE
    return ExitCode.OK


def _open(metric: GateMetric) -> str:
    if metric.change is None:
        return f"({open_end(metric)})"
    parts = [f"{change(metric)} against a limit of {limit(metric.limit)}"]
    if metric.detectable is not None and metric.detectable > metric.limit:
        parts.append(f"these blocks show {percent(metric.detectable)} or more")
    return f"{', '.join(parts)} ({open_end(metric)})"
