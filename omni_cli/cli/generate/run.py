"""Runs of `omni generate`: requests in, records out, a clean end; around an engine, or on engines that Ray places."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from omni_cli.cli.artifacts import ArtifactWriter
from omni_cli.cli.generate.printers import Printer
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.progress import ProgressDisplay
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.core.errors import ExitCode, OmniError, OutputError, UsageError
from omni_cli.report.generate_results import FinishedRequests, RequestRecord, WrittenOutput
from omni_cli.report.units import count
from omni_cli.requests.events import TextDelta
from omni_cli.requests.media.reading import media_pool
from omni_cli.requests.outputs import (
    AudioOutput,
    GenerateRequest,
    ImageOutput,
    Modality,
    Output,
    OutputReady,
    RequestResult,
    StageInfo,
    StageLoading,
    TensorOutput,
    TextOutput,
    VideoOutput,
)
from omni_cli.requests.request_spec import BadRequest, RequestSpec

# Not needed to answer a wrong option.
if TYPE_CHECKING:
    from omni_cli.engine.omni_llm import OmniLLM
    from omni_cli.engine.replicas.batch_job import BatchAnswer, BatchJob
    from omni_cli.serve.supervisor import Supervisor


_MODALITIES: Mapping[type[Output], Modality] = {
    TextOutput: "text", AudioOutput: "audio", ImageOutput: "image", VideoOutput: "video", TensorOutput: "tensor"
}  # fmt: skip


class RunOutcome(Struct, frozen=True):
    """`records` are in the order of the requests, which took `total_s` without loading; `stopped` is why the run ended
    early, if it did."""

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


@dataclass(kw_only=True)
class BaseRun(ABC):
    """Runs requests, writes their outputs and closes the worker; use it once.

    `_ready_at` is when the engine was ready, `_ended_at` when the last request ended.
    """

    worker: OmniLLM | BatchJob | Supervisor
    requests: Sequence[PendingRequest | RequestSpec | BatchLine | BadRequest]
    writer: ArtifactWriter
    printer: Printer
    progress: ProgressDisplay
    _written: dict[int, list[WrittenOutput]] = field(default_factory=lambda: defaultdict(list))
    _records: dict[int, RequestRecord] = field(default_factory=dict)
    _ready_at: float | None = None
    _ended_at: float = 0.0
    _stages: tuple[StageInfo, ...] = ()

    async def run(self, *, timeout_s: float | None, waited_s: float = 0.0) -> RunOutcome:
        """Run everything; finished results are kept if a signal, the deadline or a full disk ends it early.

        `waited_s` of the time limit are over already.

        Raises `OmniError` only if the engine could not be started, because there is nothing to keep then.
        """
        work, stopped = await run_until_stopped(self._work_and_close(), timeout_s, waited_s)
        failure = None if work.cancelled() else work.exception()
        if isinstance(failure, OutputError) and self._ready_at is not None:
            stopped = failure
        elif failure is not None:
            raise failure
        # Without loading before the requests and closing after them.
        total_s = 0.0 if self._ready_at is None else max(self._ended_at - self._ready_at, 0.0)
        return RunOutcome(self._all_records(stopped), self._stages, total_s, stopped)

    async def _work_and_close(self) -> None:
        try:
            self.progress.show()
            for index, request in enumerate(self.requests):
                if isinstance(request, BadRequest):
                    self._end(index, RequestRecord(request.request_id, error=request.error, place=request.place))
            if len(self._records) < len(self.requests):
                await self._work()
        finally:
            try:
                self.printer.close()  # may fail: the terminal or the pipe can be gone
                # Read at the end, when the memory peaks are those of the whole run.
                self._stages = () if self._ready_at is None else self.worker.stages
            finally:
                media_pool().end_all()  # a thread may still wait for one
                await self.worker.close()

    @abstractmethod
    async def _work(self) -> None:
        """Run all valid requests. Raises `OmniError` if none can run, `OutputError` if results cannot be written."""

    def _show(self, index: int, request_id: str, output: Output, wanted: frozenset[Modality] | None) -> None:
        """Write and show an output, if it was requested."""
        if wanted is not None and _MODALITIES[type(output)] not in wanted:
            return
        path = None if isinstance(output, TextOutput) else self.writer.write(request_id, output)
        written = WrittenOutput(output, path)
        self._written[index].append(written)
        self.printer.output(written)

    def _end_with(
        self, index: int, request: PendingRequest | RequestSpec, result: RequestResult, total_s: float
    ) -> None:
        """Record a request's result, with the outputs that were written."""
        record = RequestRecord(
            request.request_id, tuple(self._written[index]), result.stages, result.error, request.place, total_s
        )
        self._end(index, replace(record, notes=result.notes))

    def _end(self, index: int, record: RequestRecord) -> None:
        self._records[index] = record
        self._ended_at = time.monotonic()
        self.printer.on_ended(record)

    def _all_records(self, stopped: OmniError | None) -> tuple[RequestRecord, ...]:
        """Return a record of every request in order; unfinished ones have the reason and their partial output."""
        unfinished = stopped or OmniError("the run ended before this request")
        return tuple(
            self._records.get(index)
            or RequestRecord(
                request.request_id, outputs=tuple(self._written[index]), error=unfinished, place=request.place
            )
            for index, request in enumerate(self.requests)
        )


# The engine queues and batches requests itself; this bounds the decoded inputs that wait there.
MAX_REQUESTS_IN_FLIGHT = 64


class PendingRequest(Struct, frozen=True):
    """A usable request; `build` gives it with its files decoded, or raises `InputError`.

    `notes` are sentences on what decoding changed, which the user has read; `sampling` is as of `GenerateRequest`.
    """

    request_id: str
    build: Callable[[], GenerateRequest]
    writes_files: bool
    place: str | None = None
    notes: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = {}


@dataclass(frozen=True)
class BatchLine:
    """A line of OpenAI's batch form."""

    request_id: str
    place: str
    url: str
    body: bytes


class GenerateRun(BaseRun):
    """Starts the engine and sends all requests."""

    worker: OmniLLM
    requests: Sequence[PendingRequest | BadRequest]

    async def _work(self) -> None:
        await self.worker.start(self.progress.handle)
        self._ready_at = time.monotonic()
        self.printer.on_loaded(self.worker.stages)
        in_flight = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        tasks = [
            asyncio.create_task(self._run_request(index, request, in_flight))
            for index, request in enumerate(self.requests)
            if isinstance(request, PendingRequest)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # results and failures stay in the tasks

    async def _run_request(self, index: int, pending: PendingRequest, in_flight: asyncio.Semaphore) -> None:
        async with in_flight:
            began = time.monotonic()
            try:
                result = await self._follow(index, await asyncio.to_thread(pending.build))
            except OutputError:
                raise  # the folder is at fault, not the request: nothing that follows could be kept
            except OmniError as failure:
                result = RequestResult(pending.request_id, (), (), failure)
            self._end_with(index, pending, result, time.monotonic() - began)

    async def _follow(self, index: int, request: GenerateRequest) -> RequestResult:
        """Show and write a request's outputs until it ends; text that becomes speech only if it is wanted."""
        wanted = request.modalities
        async with aclosing(self.worker.generate(request)) as events:
            async for event in events:
                self.progress.handle(event)
                if isinstance(event, TextDelta):
                    if wanted is None or "text" in wanted:
                        self.printer.text(event.text)
                elif isinstance(event, OutputReady):
                    self._show(index, request.request_id, event.output, wanted)
                elif isinstance(event, RequestResult):
                    return event
        raise OmniError(f"request `{request.request_id}` ended without a result")


@dataclass(kw_only=True)
class ReplicatedRun(BaseRun):
    """Records every finished request immediately; requests that an earlier run recorded are not run again."""

    worker: BatchJob
    requests: Sequence[RequestSpec | BadRequest]
    finished: FinishedRequests

    async def _work(self) -> None:
        specs = {index: spec for index, spec in enumerate(self.requests) if isinstance(spec, RequestSpec)}
        keys = {index: self.finished.key(spec) for index, spec in specs.items()}
        earlier = self.finished.read()
        open_specs: dict[int, RequestSpec] = {}
        for index, spec in specs.items():
            result = earlier.get(keys[index])
            if result is None:
                open_specs[index] = spec
            else:
                self._end(index, RequestRecord(spec.request_id, place=spec.place, earlier=result))
                self.progress.handle(RequestResult(spec.request_id, (), ()))
        if len(open_specs) < len(specs):
            done = count(len(specs) - len(open_specs), "request")
            self.progress.hide()
            console.print_note(f"{done} of {len(specs)} done before: {self.finished.path}")
            self.progress.show()
        if not open_specs:
            return
        for stage in self.worker.config.stages:
            self.progress.handle(StageLoading(stage.name, stage.kind))
        async with aclosing(self.worker.answers(open_specs)) as answers:
            async for index, answer in answers:
                self._take(index, open_specs[index], answer)
                if self._records[index].error is None:
                    self.finished.add(keys[index], self._records[index])

    def _take(self, index: int, spec: RequestSpec, answer: BatchAnswer) -> None:
        if answer.load_error is not None and self._ready_at is None:
            raise answer.load_error  # all requests would fail with it, and none has finished
        if answer.stages and self._ready_at is None:
            for stage in answer.stages:
                self.progress.handle(StageLoading(stage.name, stage.kind, stage))
            self._ready_at = time.monotonic() - answer.total_s
        for output in answer.result.outputs:
            self._show(index, spec.request_id, output, spec.request.modalities)
        self.progress.handle(answer.result)
        self._end_with(index, spec, answer.result, answer.total_s)
