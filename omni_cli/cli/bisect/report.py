"""The output of `omni bisect`: a line per comparison while it runs, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from omni_cli.cli.bench.progress import BenchProgress
from omni_cli.cli.terminal import console
from omni_cli.errors import OmniError
from omni_cli.record_file import with_digest
from omni_cli.report.bench_units import percent, percent_interval, title
from omni_cli.report.tables import aligned
from omni_cli.report.units import count
from omni_cli.stats.verdicts import ComparisonSpec

if TYPE_CHECKING:
    from omni_cli.bench.bisect import BisectRecord, BisectResult
    from omni_cli.bench.commits import CommitInfo
    from omni_cli.stats.bisection import NextTrial, Trial

_VERDICTS = {
    "pass": "as good",
    "regression": "worse",
    "output mismatch": "other outputs",
    "failed": "skipped",
    "not comparable": "skipped",
}


class BisectProgress(BenchProgress):
    """Reports the phases of each comparison as `omni bench` does, and its verdict."""

    def __init__(self, stream: TextIO, commits: Sequence[CommitInfo], *, quiet: bool, verbose: bool) -> None:
        super().__init__(stream, ComparisonSpec(), quiet=quiet, verbose=verbose)
        self._commits = commits

    def step_begins(self, step: NextTrial) -> None:
        self._line.say(f"{self._commits[step.b].short}: commit {step.b} of {len(self._commits) - 1}")

    def step_done(self, trial: Trial) -> None:
        self._line.say("  ".join(filter(None, trial_cells(trial, self._commits))))


def show_search(record: BisectRecord, folder: Path, *, as_json: bool) -> None:
    """Print the document, or the comparisons and the result."""
    assert record.result is not None  # it has ended
    if as_json:
        console.print_json(with_digest(record))
        return
    ends = record.commits[0].short, record.commits[-1].short
    lines = [f"{count(len(record.commits) - 1, 'commit')} after {ends[0]} up to {ends[1]}, {_subject(record)}"]
    heads = ("commit", "against", "change [interval]", "limit", "verdict", "blocks")
    lines += aligned([heads, *(trial_cells(trial, record.commits) for trial in record.trials)], right=frozenset({5}))
    lines += [f"Skipped: {trial.reason}" for trial in record.trials if trial.verdict in ("failed", "not comparable")]
    lines += ["", *_result_lines(record, record.result), f"Saved {folder}"]
    console.print_text("\n".join(lines))


def trial_cells(trial: Trial, commits: Sequence[CommitInfo]) -> tuple[str, ...]:
    """Return commit, reference, change, limit, verdict and number of blocks of one comparison."""
    change = ""
    if trial.change is not None:
        change = percent(trial.change) if trial.ci95 is None else percent_interval(trial.change, trial.ci95)
    return (
        commits[trial.b].short,
        "GOOD" if trial.a == 0 else commits[trial.a].short,
        change,
        "" if trial.limit is None else percent(trial.limit),
        _VERDICTS.get(trial.verdict, trial.verdict),
        str(trial.blocks or ""),
    )


def get_failure(record: BisectRecord) -> OmniError | None:
    """Return the sentence on a search that names no commit although there may be one."""
    assert record.result is not None  # it has ended
    match record.result.outcome:
        case "narrowed":
            return OmniError(
                f"{len(record.result.commits)} commits are left, and those between them cannot be compared",
                hint="see the reasons above; fix what keeps them from running, in branches, or read their changes",
            )
        case "inconclusive":
            return OmniError(
                "no verdict: too noisy, or the change is close to the limit",
                hint="raise `--time-budget` and run it again: finished comparisons are kept",
            )
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
            lines.append(f"All intervals of the search hold with a probability of at least {result.confidence:.1%}")
    return lines
