"""Search a range of commits for the one that made a benchmark worse; every comparison is saved when it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode, OmniError, OutputError, UsageError
from omni_cli.core.files import cannot_write
from omni_cli.measure.bench.benchmark import Benchmark, Plan
from omni_cli.measure.bench.commits import BuildError, CommitInfo, Worktrees
from omni_cli.measure.bench.harness import Watcher
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.records.record_file import Kind, get_digest, load_checked, save_record, utc_now
from omni_cli.records.results import Bounds
from omni_cli.stats.bisection import Outcome, Search, Trial, standard_error
from omni_cli.stats.sequential import level_at
from omni_cli.stats.verdicts import BenchmarkReport, ComparisonSpec

BISECT_SCHEMA: Final = "omni.bisect/2"
MIN_ROUNDS = 27
"""Runs of each commit that a comparison may take whatever the budget: looks after 8, 12, 18 and 27."""

EXACT_ITERATIONS = 8
"""Iterations of a comparison of memory or outputs, which more of them would not make more precise."""

EXIT_CODES: dict[Outcome, ExitCode] = {
    "found": ExitCode.REGRESSION,
    "narrowed": ExitCode.INCONCLUSIVE,
    "no regression": ExitCode.OK,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "not comparable": ExitCode.NOT_COMPARABLE,
}
_AGAIN = "remove the file to search again"
_NEW_NAMES = {"omni.bisect/1": {"question": "spec"}}
_KIND = Kind("search of `omni bisect`", BISECT_SCHEMA, "omni bisect", _AGAIN, renamed=_NEW_NAMES)
_FILE = "search.json"

PlanMaker = Callable[[tuple[VariantConfig, VariantConfig]], AbstractContextManager[Plan]]


class BisectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a search. `commits` are those of which one is to blame: a single one if it was found.

    They are with the probability `confidence`. `change` is by how much the last of them is worse than the commit before
    the first: 0.05 is 5 %.
    """

    outcome: Outcome
    commits: tuple[CommitInfo, ...] = ()
    change: float | None = None
    ci95: Bounds | None = None
    confidence: float | None = None


class BisectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A search: `spec` is everything that has to be equal to continue it. `result` is None until it has ended."""

    schema: Literal["omni.bisect/2"] = BISECT_SCHEMA
    created: str
    spec: dict[str, Any]
    commits: tuple[CommitInfo, ...]
    trials: tuple[Trial, ...] = ()
    result: BisectResult | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Criterion:
    """The worsening to search for: of a time or rate (`metric`), of memory, or outputs that differ (no `limit`)."""

    metric: str | None
    limit: float | None

    def limits(self, limit: float | None) -> GateLimits:
        if limit is None:
            return GateLimits({}, max_abs_diff=0.0)
        return GateLimits({}, memory=limit) if self.metric is None else GateLimits({self.metric: limit})


class BisectWatcher(Watcher, Protocol):
    """Receives the events of a search, and those of its measurements."""

    def step_begins(self, step: Trial) -> None: ...

    def step_done(self, search: Search) -> None:
        """`search` ends with the comparison that is done."""

    def end(self) -> None: ...


class SearchFolder:
    """The folder of one search: its file, and a record of each comparison. A second command waits its turn with an
    error."""

    def __init__(self, root: Path, spec: dict[str, Any], commits: Sequence[CommitInfo]) -> None:
        name = get_digest(spec).removeprefix("sha256:")[:12]
        self.path = root / f"{commits[0].short_sha}-{commits[-1].short_sha}-{name}"
        # JSON has lists instead of tuples, and the saved spec is compared with this one.
        self._spec = msgspec.json.decode(msgspec.json.encode(spec))
        self._commits = tuple(commits)

    @property
    def file(self) -> Path:
        return self.path / _FILE

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raises `OutputError` if the folder cannot be written, and `UsageError` if another command uses it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise cannot_write(self.path, error, "--cache-dir") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError("another `omni bisect` is at work on this search", hint="wait for it") from error
            yield

    def load(self) -> BisectRecord:
        """Return the search so far, or a new one. Raises `InputError` for a file that is broken or was changed."""

        def find_other(record: BisectRecord) -> str | None:
            return None if (record.spec, record.commits) == (self._spec, self._commits) else "it is another search"

        if self.file.exists():
            return load_checked(self.file, BisectRecord, _KIND, find_other)
        return BisectRecord(created=utc_now(), spec=self._spec, commits=self._commits)


@dataclass
class Bisection:
    """One search. `plan(variants)` plans the comparison of two commits."""

    folder: SearchFolder
    worktrees: Worktrees
    criterion: Criterion
    plan: PlanMaker
    watcher: BisectWatcher
    _: KW_ONLY
    budget_s: float
    num_iters_warmup: int

    def load(self) -> None:
        """Begin, or go on with the comparisons that are saved. Raises `InputError` for a broken file."""
        self.record = self.folder.load()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a search that has ended; 5 for a change of the outputs, like the gate's."""
        assert self.record.result is not None  # it has ended
        code = EXIT_CODES[self.record.result.outcome]
        is_mismatch = code == ExitCode.REGRESSION and self.criterion.limit is None
        return ExitCode.OUTPUT_MISMATCH if is_mismatch else code

    async def run(self) -> None:
        """Compare until the search ends. Raises `OmniError` if an end of the range does not run."""
        while step := self.search().next_step():
            self.watcher.step_begins(step)
            trial = await self._try(step)
            self.record = msgspec.structs.replace(self.record, trials=(*self.record.trials, trial), result=None)
            save_record(self.record, self.folder.file)
            self.watcher.step_done(self.search())
        self.record = msgspec.structs.replace(self.record, result=self._result())
        save_record(self.record, self.folder.file)

    @property
    def _last(self) -> int:
        return len(self.record.commits) - 1

    def search(self) -> Search:
        """Return the search so far."""
        return Search(self._last, self.criterion.limit, self.budget_s, self.record.trials)

    def _result(self) -> BisectResult:
        search = self.search()
        (low, high), outcome = search.bounds, search.outcome()
        named = self.record.commits[low + 1 : high + 1] if outcome in ("found", "narrowed") else ()
        return BisectResult(
            outcome=outcome,
            commits=named,
            change=search.final.change,
            ci95=search.final.ci95,
            confidence=search.confidence,
        )

    async def _try(self, step: Trial) -> Trial:
        """Compare two commits; one that does not run is skipped, except the ends of the range."""
        try:
            return await self._compare(step)
        except OutputError:  # of the search's own files
            raise
        except (BuildError, VariantError, UsageError) as error:
            if step.b == self._last:
                raise
            return msgspec.structs.replace(step, verdict="failed", alpha=0.0, reason=error.message)

    async def _compare(self, step: Trial) -> Trial:
        variants = (await self._variant_config(step.a), await self._variant_config(step.b))
        criterion = self.criterion
        spec = ComparisonSpec(criterion.limits(step.limit), None if criterion.metric is None else (criterion.metric,))
        exact = criterion.metric is None
        limits = RunLimits(
            EXACT_ITERATIONS if exact else None,
            self.num_iters_warmup,
            None if exact else step.budget_s,
            step.alpha,
            MIN_ROUNDS,
        )
        name = f"{len(self.record.trials):02d}-{variants[1].name}.json"
        with self.plan(variants) as plan:
            benchmark = Benchmark(plan, spec, limits, self.watcher, record_file=self.folder.path / name)
            try:
                await benchmark.run()
            except VariantError as error:
                if plan.builder.measured[1].error is None:
                    # The commit that failed is the one that ran before, so the new commit is not to blame.
                    raise OmniError(error.message, hint=error.hint) from error
                raise
            report = benchmark.report()
        judged = _judge_trial(report, msgspec.structs.replace(step, record=name, alpha=0.0 if exact else step.alpha))
        if judged.verdict == "failed" and step.b == self._last:
            raise OmniError(f"the measurement cannot be trusted: {judged.reason}")
        return judged

    async def _variant_config(self, position: int) -> VariantConfig:
        commit = self.record.commits[position]
        folder = await self.worktrees.provide(commit)
        return VariantConfig(commit.short_sha, code=folder, settings={"code": commit.sha})


def _judge_trial(report: BenchmarkReport, trial: Trial) -> Trial:
    """Return the trial with the gate's verdict. A variant that failed has no other verdict, and spent no error."""
    assert report.within is not None and report.within.gate is not None  # two variants and limits
    gate = report.within.gate
    reasons = [*gate.reasons, *(f"`{item.field}` differs" for item in gate.mismatches)]
    reasons += [metric.reason for metric in gate.metrics if metric.reason is not None]
    change = gate.metrics[0].change if gate.metrics else None
    ci95 = gate.metrics[0].ci95 if gate.metrics else None
    blocks = max((item.blocks for item in report.within.comparisons), default=0)
    plan = report.record.sampling
    return msgspec.structs.replace(
        trial,
        verdict=gate.verdict,
        alpha=0.0 if gate.verdict in ("failed", "not comparable") else trial.alpha,
        change=change,
        ci95=ci95,
        standard_error=standard_error(ci95, level_at(plan.looks, blocks, plan.alpha)),
        blocks=blocks,
        reason="; ".join(reasons) or None,
    )
