"""One run of `omni bench`: measures, keeps the record current, and says what was found, however it ends."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.bench.against import checked_out, find_commit
from omni_cli.bench.checks import warnings as check_warnings
from omni_cli.bench.environment import read_environment
from omni_cli.bench.harness import Harness, Limits, Runner, State
from omni_cli.bench.memory import Free, read_free
from omni_cli.bench.protocol import Load, Loading
from omni_cli.bench.session import Session
from omni_cli.bench.utilisation import UtilisationSampler
from omni_cli.bench.variant_process import Launch, VariantError, VariantProcess
from omni_cli.bench.variants import Variant
from omni_cli.bench.verdicts import Answer, Question
from omni_cli.cli.bench.progress import BenchProgress
from omni_cli.cli.bench.report import check_writable, failure_of, show_answer, show_self_check
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.stop_signals import Interrupted, stop_signals
from omni_cli.errors import DeadlineError, ExitCode, OmniError
from omni_cli.record import Record, metric_names, save_record
from omni_cli.report.bench_notes import not_comparable
from omni_cli.stats.findings import check_limits, check_metrics

if TYPE_CHECKING:
    from omni_cli.bench.workload import Workload
    from omni_cli.cli.bench.command import Settings, Source


class NotComparableError(OmniError):
    exit_code = ExitCode.NOT_COMPARABLE


def run_bench(
    source: Source,
    workload: Workload,
    variants: tuple[Variant, ...],
    question: Question,
    settings: Settings,
    *,
    against: str | None,
    command: tuple[str, ...],
    read_free: Callable[[], Free] = read_free,
) -> ExitCode:
    """Measure and report. Raises `OmniError` where nothing at all was measured."""
    check_writable(settings.files)
    environment = read_environment()
    with ExitStack() as stack:
        if against is not None:
            commit = find_commit(against)
            variants = _two_commits(commit.ref, commit.commit, environment["code"], variants[0])
            variants = (replace(variants[0], code=stack.enter_context(checked_out(commit))), variants[1])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omni-bench-")))
        session = Session(
            variants,
            command=command,
            environment=environment,
            workload=workload.describe(source.load()),
            folder=folder,
        )
        local = _LocalVariants(session, source, workload, folder, settings.verbose)
        return measure(session, question, settings, launch=local.launch, load=local.load, read_free=read_free)


def measure(
    session: Session,
    question: Question,
    settings: Settings,
    *,
    launch: Callable[[int], Runner],
    load: Callable[[int], Load | None],
    read_free: Callable[[], Free] = read_free,
) -> ExitCode:
    """Fill the session and report. Raises `OmniError` where nothing at all was measured."""
    _check_baseline(question, session)
    run = BenchRun(session, question, settings, launch, load, read_free)
    stopped = run.run()
    return _report(session, question, settings, stopped, run.progress)


@dataclass
class _LocalVariants:
    """The processes of a profile's variants, and what they load."""

    session: Session
    source: Source
    workload: Workload
    folder: Path
    verbose: bool

    def launch(self, index: int) -> VariantProcess:
        variant = self.session.measured[index].variant
        return VariantProcess(Launch(variant.name, variant.environment, variant.code), verbose=self.verbose)

    def load(self, index: int) -> Load:
        inputs = self.folder / "inputs"
        return Load(
            profile=self.source.profile,
            overrides=(*self.source.overrides, *self.session.measured[index].variant.overrides),
            model=self.source.model,
            seed=self.source.seed,
            trust_remote_code=self.source.trust_remote_code,
            stage=self.workload.stage,
            batch_size=self.workload.batch_size,
            input_len=self.workload.input_len,
            output_len=self.workload.output_len,
            given_lengths=self.workload.given_lengths,
            inputs=str(inputs),
            records_inputs=not inputs.exists(),
            verbose=self.verbose,
        )


class BenchRun:
    """The harness within the command: signals, the deadline, the record on the disk."""

    def __init__(
        self,
        session: Session,
        question: Question,
        settings: Settings,
        launch: Callable[[int], Runner],
        load: Callable[[int], Load | None],
        read_free: Callable[[], Free],
    ) -> None:
        self.progress = BenchProgress(sys.stderr, question, quiet=settings.quiet, verbose=settings.verbose)
        self._session = session
        self._question = question
        self._settings = settings
        self._launch = launch
        self._load = load
        self._read_free = read_free
        self._keeper = _RecordKeeper(settings.files.record)

    def run(self) -> OmniError | None:
        """Why it ended early, None if it did not. Raises that where nothing was measured."""
        stopped = asyncio.run(self._run())
        self.progress.hide()
        self._keeper.stop()
        if stopped is not None and not self._session.has_samples:
            raise stopped
        return stopped

    async def _run(self) -> OmniError | None:
        settings = self._settings
        harness = Harness(
            self._session,
            launch=self._launch,
            load=self._load,
            limits=Limits(settings.num_iters, settings.num_iters_warmup, settings.time_budget_s),
            decided=self._question.is_decided,
            watcher=self,
            sampler=UtilisationSampler(),
            read_free=self._read_free,
        )
        with stop_signals() as stop_requested:
            work = asyncio.create_task(harness.run())
            either: set[asyncio.Future[Any]] = {work, stop_requested}
            await asyncio.wait(either, timeout=settings.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                stopped: OmniError = (
                    Interrupted("interrupted")
                    if stop_requested.done()
                    else DeadlineError(
                        f"the run was not done within {settings.timeout_s:g} s", hint="give it more with `--timeout`"
                    )
                )
                work.cancel()
                await asyncio.wait({work})
                return stopped
        failure = work.exception()
        if failure is not None and not isinstance(failure, VariantError):
            raise failure
        return failure

    def loading(self, variant: str, event: Loading) -> None:
        self.progress.loading(variant, event)

    def warming_up(self, variant: str) -> None:
        self.progress.warming_up(variant)

    def falling_back(self, reason: str) -> None:
        self._session.note(interleaving_reason=reason)
        self.progress.falling_back(reason)

    def block_done(self, state: State) -> None:
        self._keeper.save(state.record)
        if state.blocks == 1:
            self._check_names(state.record)
        self.progress.block_done(state)

    def _check_names(self, record: Record) -> None:
        """Which metrics there are is known after the first block; a slip of the keyboard must not cost a minute."""
        check_limits(self._question.limits, [record])
        known = [name for variant in record.variants for name in metric_names(variant)]
        check_metrics(self._question.metrics or (), known)


@dataclass
class _RecordKeeper:
    """Saves the record; a save that an interrupt left running in its thread must not overwrite a later one."""

    path: Path | None
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def save(self, record: Record) -> None:
        with self._lock:
            if self.path is not None and not self._stopped:
                save_record(record, self.path)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


def _two_commits(ref: str, commit: str, code: Mapping[str, Any], variant: Variant) -> tuple[Variant, Variant]:
    """The other commit, which is compared with, and this code."""
    mine = code.get("commit", "")[:12] + (" + changes" if code.get("dirty") else "")
    name = "this code" if mine.startswith(ref) else mine or "this code"
    return (
        replace(variant, name=ref, settings={**variant.settings, "code": commit}),
        replace(variant, name=name if name != ref else "this code", settings={**variant.settings, "code": mine}),
    )


def _check_baseline(question: Question, session: Session) -> None:
    """Another machine or workload is known before anything is measured."""
    mismatches = question.mismatches(session.record())
    if mismatches:
        note = not_comparable(mismatches)
        raise NotComparableError(note.message, hint=note.hint)


def _report(
    session: Session, question: Question, settings: Settings, stopped: OmniError | None, progress: BenchProgress
) -> ExitCode:
    """Save, show, and say how it ended."""
    progress.hide()
    if stopped is None:
        session.check()
    answer = question.answer(session.record())
    if settings.files.record is not None:
        save_record(answer.complete_record(), settings.files.record)
    code = show_self_check(answer, question, settings) if settings.self_check else show_answer(answer, settings)
    for text in _setting_warnings(session):
        console.print_warning(text)
    if stopped is not None:
        console.print_note("")
        console.print_error(stopped, verbose=settings.verbose)
        return stopped.exit_code
    return _verdict(answer, code, settings)


def _setting_warnings(session: Session) -> list[str]:
    found = [text for measured in session.measured for text in check_warnings(measured.variant, measured.stages)]
    return list(dict.fromkeys(found))


def _verdict(answer: Answer, code: ExitCode, settings: Settings) -> ExitCode:
    error = failure_of(answer, code)
    if error is not None and not settings.self_check:
        console.print_note("")
        console.print_error(error, verbose=settings.verbose)
    return code
