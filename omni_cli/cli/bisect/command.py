"""`omni bisect`: finds the commit that made a benchmark slower."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli.bench.options import DEFAULT_BUDGET_S, StageOption, WorkloadOptions
from omni_cli.cli.options import (
    DEFAULT_MARGIN,
    DisplayOptions,
    TimeoutOption,
    argument,
    option,
    read_fraction,
    seconds_option,
)
from omni_cli.cli.profile_choice import fetch_model
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, OmniError, UsageError
from omni_cli.records.metrics import E2E
from omni_cli.report.units import count

if TYPE_CHECKING:
    from omni_cli.measure.bench.bisect import Bisection, Criterion, PlanMaker


@dataclass(frozen=True, kw_only=True)
class BisectOptions(WorkloadOptions):
    """The range, the benchmark, and the worsening to search for."""

    good: str = argument("GOOD", "A commit from before the change.")
    bad: str = argument("BAD", "A later commit, which is worse.")
    command: str | None = option(
        "--command COMMAND",
        "Measure any program instead of a profile: a shell command, run in a worktree of each commit of the "
        "current folder's repository.",
    )
    build: str | None = option("--build COMMAND", "Run this once in each worktree; a commit where it fails is skipped.")
    duration: str = option(
        "--duration last-line|json:KEY|wall-time|cpu-time",
        "The seconds of `--command`: the last line of its output, a key of its JSON output such as `stats.mean`, "
        "its wall time, or the processor time of all its processes, which other programs hardly change.",
        default="last-line",
    )
    stage: StageOption = "all"
    metric: str | None = option("--metric NAME", "The metric to compare. Default: e2e_s.")
    max_regression: str | None = option(
        "--max-regression PERCENT", f"Search for more than this slowdown. Default: {DEFAULT_MARGIN}."
    )
    max_memory_regression: str | None = option(
        "--max-memory-regression PERCENT", "Search for more than this increase in memory."
    )
    require_identical_outputs: bool = option(
        "--require-identical-outputs", "Search for a change of the outputs.", default=False
    )
    num_iters_warmup: int = option(
        "--num-iters-warmup N", "Warm-up iterations per load, not counted; at least 1 is run.", default=3, min=0
    )
    time_budget: float = seconds_option(
        "--time-budget SECONDS",
        "Time for measuring two commits; up to 16 times as long on a noisy machine.",
        default=DEFAULT_BUDGET_S,
    )
    cache_dir: Path | None = option("--cache-dir DIR", "Folder for worktrees and searches. Default: omni's cache.")
    timeout: TimeoutOption = None

    def check(self) -> None:
        """Raise `UsageError` for options that exclude each other, or that nothing would use."""
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


def bisect(options: BisectOptions) -> int:
    """Find the commit between GOOD and BAD that made a benchmark slower, larger, or its outputs different.

    Commits are compared with GOOD, interleaved, until one is to blame with 95 % probability; those that do not run are
    skipped. Run it again to go on after an interrupt. Exits with 0 (BAD is not worse), 1 (it is, and the commit is
    named), 3 (too noisy, or several commits are left), 4 (not comparable), 5 (a commit that changed the outputs is
    named) or 6 (GOOD or BAD does not run).
    """
    options.check()
    limit = options.limit()
    from omni_cli.measure.bench.bisect import Criterion
    from omni_cli.stats.gate import check_names

    check_names([options.metric or E2E])
    is_timed = limit is not None and options.max_memory_regression is None
    criterion = Criterion((options.metric or E2E) if is_timed else None, limit)
    bisection = _bisection(options, criterion)
    with bisection.folder.lock():
        bisection.load()
        return _run(bisection, options)


def _bisection(options: BisectOptions, criterion: Criterion) -> Bisection:
    """Build the search. Raises `OmniError` for a wrong commit, profile or program."""
    from omni_cli.checkpoints.build import cache_folder
    from omni_cli.cli.bisect.report import BisectProgress
    from omni_cli.measure.bench.bisect import Bisection, SearchFolder
    from omni_cli.measure.bench.commits import Worktrees, commits_between, get_repository
    from omni_cli.measure.bench.local import Program, program_plan
    from omni_cli.records.record_file import get_digest

    command = ("omni", *sys.argv[1:])
    if options.command is None:
        from omni_cli.measure.bench.commits import find_commit

        repository, _ = (find_commit(ref)[0] for ref in (options.good, options.bad))
        plan, workload = _profile_plan(options, command)
    else:
        program = Program(options.command, options.duration)
        repository, plan = get_repository(Path.cwd()), partial(program_plan, program, command=command)
        workload = {**program.describe(), "build": options.build}
    commits = commits_between(repository, options.good, options.bad)
    root = (options.cache_dir or cache_folder().with_name("bisect")).resolve()
    own = root / f"{repository.name}-{get_digest(str(repository)).removeprefix('sha256:')[:8]}"
    built = get_digest(options.build).removeprefix("sha256:")[:8] if options.build else "sources"
    spec = {"workload": workload, **dataclasses.asdict(criterion)}
    return Bisection(
        SearchFolder(own, spec, commits),
        Worktrees(repository, own / "worktrees" / built, options.build),
        criterion,
        plan,
        BisectProgress(sys.stderr, commits, quiet=options.quiet, verbose=options.verbose),
        budget_s=options.time_budget,
        num_iters_warmup=options.num_iters_warmup,
    )


def _profile_plan(options: BisectOptions, command: tuple[str, ...]) -> tuple[PlanMaker, dict[str, Any]]:
    """Return the planner of a profile's comparisons and the record's description of its workload."""
    from omni_cli.measure.bench.local import local_plan, plan_variant_configs

    source, config, workload = options.read(options.stage)
    plan_variant_configs((), config, workload, source)
    fetch_model(config, quiet=options.quiet)
    plan = partial(local_plan, source, workload, against=None, command=command, verbose=options.verbose)
    return plan, workload.describe(config)


def _run(bisection: Bisection, options: BisectOptions) -> ExitCode:
    from omni_cli.cli.bisect.report import get_failure, range_so_far, show_search
    from omni_cli.cli.terminal.stop_signals import run_until_stopped

    work, stopped = asyncio.run(run_until_stopped(bisection.run(), options.timeout))
    failure = stopped or work.exception()
    bisection.watcher.end()
    if failure is not None:
        if bisection.record.trials and isinstance(failure, OmniError):
            kept = count(len(bisection.record.trials), "comparison")
            console.print_note(f"{kept} kept in {bisection.folder.path}: run the same command again to go on")
            if found := range_so_far(bisection.search(), bisection.record.commits):
                console.print_note(found)
        raise failure
    show_search(bisection.record, bisection.search(), bisection.folder.path, as_json=options.as_json)
    if (note := get_failure(bisection.record, bisection.search())) is not None:
        console.print_error(note, verbose=options.verbose)
    return bisection.exit_code
