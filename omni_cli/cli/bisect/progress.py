"""Progress of `omni bisect`: a line per comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from omni_cli.cli.bench.progress import BenchProgress
from omni_cli.cli.bisect.report import trial_cells
from omni_cli.stats.verdicts import ComparisonSpec

if TYPE_CHECKING:
    from omni_cli.bench.commits import CommitInfo
    from omni_cli.stats.bisection import NextTrial, Trial


class BisectProgress(BenchProgress):
    """Reports the phases of each comparison as `omni bench` does, and its verdict."""

    def __init__(self, stream: TextIO, commits: Sequence[CommitInfo], *, quiet: bool, verbose: bool) -> None:
        super().__init__(stream, ComparisonSpec(), quiet=quiet, verbose=verbose)
        self._commits = commits

    def step_begins(self, step: NextTrial) -> None:
        self._line.say(f"{self._commits[step.b].short}: commit {step.b} of {len(self._commits) - 1}")

    def step_done(self, trial: Trial) -> None:
        self._line.say("  ".join(filter(None, trial_cells(trial, self._commits))))
