"""One run of `omni generate` around the engine: requests in, records out, an orderly end in any case."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.printers import Printer
from omni_cli.cli.progress import Progress
from omni_cli.cli.stop_signals import Interrupted, stop_signals
from omni_cli.errors import DeadlineError, ExitCode, OmniError, OutputError, UsageError
from omni_cli.inputs.request_spec import BadRequest
from omni_cli.outputs import (
    AudioOutput,
    Event,
    GenerateRequest,
    Modality,
    Output,
    OutputReady,
    RequestResult,
    StageInfo,
    StageTrace,
    TextDelta,
    TextOutput,
)
from omni_cli.report.records import RequestRecord, WrittenOutput

# The engine queues and batches on its own; this only bounds how many decoded inputs wait there.
MAX_REQUESTS_IN_FLIGHT = 64


class Engine(Protocol):
    """What a run needs of `omni_cli.engine.omni_llm.OmniLLM`."""

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    async def close(self) -> None: ...

    @property
    def stages(self) -> tuple[StageInfo, ...]: ...


@dataclass(frozen=True)
class PendingRequest:
    """A usable request; `build` gives it with its files decoded, or raises `InputError`."""

    request_id: str
    build: Callable[[], GenerateRequest]
    writes_files: bool
    place: str | None = None


@dataclass(frozen=True)
class Outcome:
    """`records` are in the order of the requests; `stopped` is why the run ended early, if it did."""

    records: tuple[RequestRecord, ...]
    stages: tuple[StageInfo, ...]
    total_s: float
    stopped: OmniError | None = None

    @property
    def exit_code(self) -> ExitCode:
        if self.stopped is not None:
            return self.stopped.exit_code
        errors = [record.error for record in self.records if record.error is not None]
        if not errors:
            return ExitCode.OK
        return ExitCode.USAGE if all(isinstance(error, UsageError) for error in errors) else ExitCode.RUN_FAILED


class GenerateRun:
    """Starts the engine, sends all requests, writes what comes out and closes the engine; use it once."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[PendingRequest | BadRequest],
        *,
        writer: ArtifactWriter,
        printer: Printer,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._writer = writer
        self._printer = printer
        self._progress = progress
        self._in_flight = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        self._written: dict[int, list[WrittenOutput]] = {index: [] for index in range(len(requests))}
        self._records: dict[int, RequestRecord] = {}
        self._started = False
        self._stages: tuple[StageInfo, ...] = ()

    async def run(self, *, timeout_s: float | None) -> Outcome:
        """Run everything; what is finished is kept when a signal, the deadline or a full disk ends it early.

        Raises `OmniError` only where the engine could not be started, for then there is nothing to keep.
        """
        began = time.monotonic()
        with stop_signals() as stop_requested:
            work = asyncio.create_task(self._work())
            try:
                self._progress.show()
                either: set[asyncio.Future[Any]] = {work, stop_requested}
                await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                stopped = None if work.done() else _why_stopped(stop_requested, timeout_s)
            finally:
                await self._end_run(work)
        failure = None if work.cancelled() else work.exception()
        if isinstance(failure, OutputError) and self._started:
            stopped = failure
        elif failure is not None:
            raise failure
        return Outcome(self._all_records(stopped), self._stages, time.monotonic() - began, stopped)

    async def _end_run(self, work: asyncio.Task[None]) -> None:
        await _cancel({work})
        try:
            self._printer.close()  # may fail: the terminal or the pipe can be gone
            # Read late: by now the peaks of memory are those of the whole run.
            self._stages = self._engine.stages if self._started else ()
        finally:
            await self._engine.close()

    async def _work(self) -> None:
        for index, request in enumerate(self._requests):
            if isinstance(request, BadRequest):
                self._end(index, RequestRecord(request.request_id, error=request.error, place=request.place))
        if all(isinstance(request, BadRequest) for request in self._requests):
            return
        await self._engine.start(self._progress.handle)
        self._started = True
        self._printer.loaded(self._engine.stages)
        tasks = [
            asyncio.create_task(self._run_request(index, request))
            for index, request in enumerate(self._requests)
            if isinstance(request, PendingRequest)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def _run_request(self, index: int, pending: PendingRequest) -> None:
        async with self._in_flight:
            began = time.monotonic()
            traces: tuple[StageTrace, ...] = ()
            error: OmniError | None = None
            try:
                request = await asyncio.to_thread(pending.build)
                result = await self._follow(index, request)
                traces, error = result.stages, result.error
            except OutputError:
                raise  # the folder is at fault, not the request: nothing that follows could be kept
            except OmniError as failure:
                error = failure
            self._end(
                index,
                RequestRecord(
                    pending.request_id,
                    outputs=tuple(self._written[index]),
                    stages=traces,
                    error=error,
                    place=pending.place,
                    total_s=time.monotonic() - began,
                ),
            )

    async def _follow(self, index: int, request: GenerateRequest) -> RequestResult:
        """Show and write what a request gives until it ends; text on the way to speech only if it is wanted."""
        wanted = request.modalities
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                self._progress.handle(event)
                if isinstance(event, TextDelta):
                    if wanted is None or "text" in wanted:
                        self._printer.text(event.text)
                elif isinstance(event, OutputReady):
                    if wanted is None or _modality(event.output) in wanted:
                        self._keep(index, request.request_id, event.output)
                elif isinstance(event, RequestResult):
                    return event
        raise OmniError(f"request `{request.request_id}` ended without a result")

    def _keep(self, index: int, request_id: str, output: Output) -> None:
        path = None if isinstance(output, TextOutput) else self._writer.write(request_id, output)
        written = WrittenOutput(output, path)
        self._written[index].append(written)
        self._printer.output(written)

    def _end(self, index: int, record: RequestRecord) -> None:
        self._records[index] = record
        self._printer.ended(record)

    def _all_records(self, stopped: OmniError | None) -> tuple[RequestRecord, ...]:
        """A record of every request in order; those that did not end say why, and keep what they had."""
        unfinished = stopped or OmniError("the run ended before this request")
        return tuple(
            self._records.get(index)
            or RequestRecord(
                request.request_id,
                outputs=tuple(self._written[index]),
                error=unfinished,
                place=request.place,
            )
            for index, request in enumerate(self._requests)
        )


def _why_stopped(stop_requested: asyncio.Future[signal.Signals], timeout_s: float | None) -> OmniError:
    if stop_requested.done():
        return Interrupted("interrupted")
    return DeadlineError(f"the run was not done within {timeout_s:g} s", hint="give it more time with `--timeout`")


def _modality(output: Output) -> Modality:
    if isinstance(output, TextOutput):
        return "text"
    return "audio" if isinstance(output, AudioOutput) else "image"


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel what still runs and wait for its clean-up; results and failures stay in the tasks."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
