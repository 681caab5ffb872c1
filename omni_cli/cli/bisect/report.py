"""The output of `omni bisect`: a line per comparison while it runs, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from omni_cli.cli.bench.run import BenchProgress
from omni_cli.cli.terminal import console
from omni_cli.core.errors import OmniError
from omni_cli.measure.bench.local import CPU_TIME, WALL_TIME
from omni_cli.records.record_file import with_digest
from omni_cli.report.tables import align
from omni_cli.report.units import count, percent, percent_interval, title
from omni_cli.stats.bisection import BROKEN_VERDICTS
from omni_cli.stats.sequential import ALPHA
from omni_cli.stats.verdicts import ComparisonSpec

if TYPE_CHECKING:
    from omni_cli.measure.bench.bisect import BisectRecord, BisectResult
    from omni_cli.measure.bench.commits import CommitInfo
    from omni_cli.stats.bisection import Search, Trial

_VERDICTS = {
    "pass": "as good",
    "regression": "worse",
    "output mismatch": "other outputs",
    "failed": "skipped",
    "not comparable": "skipped",
}


_MOST_LIKELY = 5


class BisectProgress(BenchProgress):
    """Reports the phases of each comparison as `omni bench` does, and its verdict."""

    def __init__(self, stream: TextIO, commits: Sequence[CommitInfo], *, quiet: bool, verbose: bool) -> None:
        super().__init__(stream, ComparisonSpec(), quiet=quiet, verbose=verbose)
        self._commits = commits

    def step_begins(self, step: Trial) -> None:
        self._line.step(f"{self._commits[step.b].short_sha}: commit {step.b} of {len(self._commits) - 1}")

    def step_done(self, search: Search) -> None:
        self._line.step("  ".join(filter(None, trial_cells(search, search.trials[-1], self._commits))))


def show_search(record: BisectRecord, search: Search, folder: Path, *, as_json: bool) -> None:
    """Print the document, or the comparisons and the result of a search that has ended."""
    assert record.result is not None
    if as_json:
        console.print_json(with_digest(record))
        return
    ends = record.commits[0].short_sha, record.commits[-1].short_sha
    lines = [f"{count(len(record.commits) - 1, 'commit')} after {ends[0]} up to {ends[1]}, {_subject(record)}"]
    heads = ("commit", "against", "change", "verdict", "sure", "blocks")
    cells = [trial_cells(search, trial, record.commits) for trial in record.trials]
    lines += align([heads, *cells], right=frozenset({4, 5}))
    lines += [f"Skipped: {trial.reason}" for trial in record.trials if trial.verdict in ("failed", "not comparable")]
    lines += ["", *_result_lines(record, record.result), f"Saved {folder}"]
    console.print_text("\n".join(lines))


def trial_cells(search: Search, trial: Trial, commits: Sequence[CommitInfo]) -> tuple[str, ...]:
    """Return commit, reference, change, verdict, its probability, and number of blocks of one comparison.

    Comparisons that stop as soon as they say something have no interval.
    """
    change = "" if trial.change is None else percent(trial.change)
    if trial.change is not None and trial.ci95 is not None and trial.alpha <= ALPHA:
        change = percent_interval(trial.change, trial.ci95)
    odds, verdict, sure = search.odds(trial), _VERDICTS.get(trial.verdict, trial.verdict), ""
    if odds and trial.change is not None:
        verdict, sure = "worse" if odds > 0 else "as good", probability(1 / (1 + math.exp(-abs(odds))))
    return (
        commits[trial.b].short_sha,
        "GOOD" if trial.a == 0 else commits[trial.a].short_sha,
        change,
        verdict,
        sure,
        str(trial.blocks or ""),
    )


def probability(value: float) -> str:
    return f"{value:.1%}" if value < 0.999 else "> 99.9%"


def range_so_far(search: Search, commits: Sequence[CommitInfo]) -> str | None:
    """Return the commits that are left of a search without an end, the likeliest with their probabilities; None if it
    has not narrowed them."""
    low, high = search.bounds
    if search.confidence is None or high - low == search.last:
        return None
    left = f"{count(high - low, 'commit')} after {commits[low].short_sha} up to {commits[high].short_sha}"
    shares = search.probabilities.tolist()
    likely = sorted(range(low, high), key=lambda place: -shares[place])[:_MOST_LIKELY]
    rows = [(commits[place + 1].short_sha, probability(shares[place]), commits[place + 1].subject) for place in likely]
    heading = f"so far: one of the {left}, with {probability(search.confidence)}; most likely"
    return "\n".join([heading, *align(rows, right=frozenset({1}))])


def _hint_on_noise(record: BisectRecord) -> str:
    hint = "raise `--time-budget` and run it again: finished comparisons are kept"
    if record.spec["workload"].get("duration") == WALL_TIME:
        hint += f"; `--duration {CPU_TIME}` is disturbed less by other programs"
    return hint


def get_failure(record: BisectRecord, search: Search) -> OmniError | None:
    """Return the sentence on a search that names no commit although there may be one."""
    assert record.result is not None  # it has ended
    match record.result.outcome:
        case "narrowed":
            left = count(len(record.result.commits), "commit")
            low, high = search.bounds
            skipped = sum(low < trial.b < high for trial in record.trials if trial.verdict in BROKEN_VERDICTS)
            if skipped and skipped == high - low - 1:
                return OmniError(
                    f"{left} are left, of which only the last one runs",
                    hint="see the reasons above; fix what keeps them from running, in branches, or read their changes",
                )
            return OmniError(
                f"{left} are left: the change is too small for this machine's noise", hint=_hint_on_noise(record)
            )
        case "inconclusive":
            return OmniError("no verdict: too noisy, or the change is close to the limit", hint=_hint_on_noise(record))
        case "not comparable":
            return OmniError(f"the two ends cannot be compared: {record.trials[-1].reason}")
    return None


def _subject(record: BisectRecord) -> str:
    workload, metric = record.spec["workload"], record.spec["metric"]
    what = f"`{workload['command']}`" if "command" in workload else f"{workload['profile']} {workload['stage']}"
    if record.spec["limit"] is None:
        return f"outputs of {what}"
    return f"{title(metric) if metric else 'memory'} of {what}"


def _result_lines(record: BisectRecord, result: BisectResult) -> list[str]:
    if result.outcome == "no regression":
        what = "The outputs are the same" if record.spec["limit"] is None else "No slowdown"
        what = what if record.spec["metric"] or record.spec["limit"] is None else "No more memory"
        size = f": {percent_interval(result.change, result.ci95)}" if result.change is not None and result.ci95 else ""
        return [f"{what}{size}"]
    lines = []
    for commit in result.commits:
        lines.append(f"{commit.sha} {commit.subject}")
        lines.append(f"  {commit.author}, {commit.date}")
    if lines:
        lines.insert(0, "Found" if len(result.commits) == 1 else "One of")
        if result.change is not None and result.ci95 is not None:
            lines.append(f"{percent_interval(result.change, result.ci95)} against the commit before")
        if result.confidence is not None:
            lines.append(f"Probability: {probability(result.confidence)}")
    return lines
