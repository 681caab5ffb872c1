"""The options of `omni bisect`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omni_cli.cli.bench.options import DEFAULT_BUDGET_S, StageOption, WorkloadOptions
from omni_cli.cli.gate_options import DEFAULT_MARGIN, read_fraction
from omni_cli.cli.options import DisplayOptions, TimeoutOption, argument, option
from omni_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BisectOptions(WorkloadOptions):
    """The range, the benchmark, and the worsening to search for."""

    good: Annotated[str, argument("GOOD", "A commit from before the change.")]
    bad: Annotated[str, argument("BAD", "A later commit, which is worse.")]
    command: Annotated[
        str | None,
        option(
            "--command",
            "COMMAND",
            "Measure any program instead of a profile: a shell command, run in a worktree of each commit of the "
            "current folder's repository.",
        ),
    ] = None
    build: Annotated[
        str | None, option("--build", "COMMAND", "Run this once in each worktree; a commit where it fails is skipped.")
    ] = None
    duration: Annotated[
        str,
        option(
            "--duration",
            "last-line|json:KEY|wall-time|cpu-time",
            "The seconds of `--command`: the last line of its output, a key of its JSON output such as `stats.mean`, "
            "its wall time, or the processor time of all its processes, which other programs hardly change.",
        ),
    ] = "last-line"
    stage: StageOption = "all"
    metric: Annotated[str | None, option("--metric", "NAME", "The metric to compare. Default: e2e_s.")] = None
    max_regression: Annotated[
        str | None,
        option("--max-regression", "PERCENT", f"Search for more than this slowdown. Default: {DEFAULT_MARGIN}."),
    ] = None
    max_memory_regression: Annotated[
        str | None, option("--max-memory-regression", "PERCENT", "Search for more than this increase in memory.")
    ] = None
    require_identical_outputs: Annotated[
        bool, option("--require-identical-outputs", None, "Search for a change of the outputs.")
    ] = False
    num_iters_warmup: Annotated[
        int, option("--num-iters-warmup", "N", "Warm-up iterations per load, not counted; at least 1 is run.", min=0)
    ] = 3
    time_budget: Annotated[
        float,
        option(
            "--time-budget", "SECONDS", "Time for measuring two commits; up to 16 times as long on a noisy machine."
        ),
    ] = DEFAULT_BUDGET_S
    cache_dir: Annotated[
        Path | None,
        option("--cache-dir", "DIR", "Folder for worktrees and searches. Default: omni's cache."),
    ] = None
    timeout: TimeoutOption = None

    def check(self) -> None:
        """Raise `UsageError` for options that exclude each other, or that nothing would use."""
        if not (math.isfinite(self.time_budget) and self.time_budget > 0):
            raise UsageError("invalid value for `--time-budget`: expected a number of seconds greater than 0")
        memory, outputs = self.max_memory_regression is not None, self.require_identical_outputs
        time = self.metric is not None or self.max_regression is not None
        if memory + outputs + time > 1:
            message = "a search is for a slowdown, for more memory, or for other outputs"
            raise UsageError(message, hint="choose one of them, and run another search for the other")
        if self.command is None:
            unused = {"--build": self.build is not None, "--duration": self.duration != "last-line"}
            hint = "add `--command`, or remove it"
        else:
            kept = {field.name for field in dataclasses.fields(DisplayOptions)}
            workload = [field for field in dataclasses.fields(WorkloadOptions) if field.name not in kept]
            unused = {
                "REQUESTS.jsonl" if field.name == "requests" else f"--{field.name.strip('_').replace('_', '-')}": (
                    getattr(self, field.name) != field.default
                )
                for field in workload
            }
            unused |= {"--stage": self.stage != "all", "--metric": self.metric is not None}
            unused |= {"--max-memory-regression": memory, "--require-identical-outputs": outputs}
            hint = "a program has a duration only: remove it, or remove `--command`"
        for name, is_given in unused.items():
            if is_given:
                raise UsageError(
                    f"`{name}` has no effect {'with' if self.command else 'without'} `--command`", hint=hint
                )

    def limit(self) -> float | None:
        """The worsening to search for; None for outputs. Raises `UsageError`."""
        if self.require_identical_outputs:
            return None
        if self.max_memory_regression is not None:
            return read_fraction("--max-memory-regression", self.max_memory_regression)
        limit = read_fraction("--max-regression", self.max_regression or DEFAULT_MARGIN)
        if limit == 0:
            message = "invalid value for `--max-regression`: a slowdown of 0 cannot be measured"
            raise UsageError(message, hint="leave room for noise: use 2%, for example")
        return limit
