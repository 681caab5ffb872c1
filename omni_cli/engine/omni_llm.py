"""`OmniLLM`: the chain of stages. Requests flow through it concurrently, and their outputs stream out.

Each stage runs in its own process; this one imports neither torch nor vLLM. Stages load in parallel, and work on
different requests at the same time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.checkpoints.files import read_family, read_model_kind
from omni_cli.config.roles import for_family
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError, StageError
from omni_cli.engine.checkpoint_fit import check_fit, check_start, read_ahead
from omni_cli.engine.describing import provide_in_child
from omni_cli.engine.devices import check_sleep, load_groups
from omni_cli.engine.memory_plan import plan_start
from omni_cli.engine.mps import MpsServer
from omni_cli.engine.process.fork_server import ForkServer
from omni_cli.engine.process.stage_client import StageClient, watch
from omni_cli.engine.request_run import RequestRun
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import (
    GenerateRequest,
    MemoryPlanned,
    RequestResult,
    StageFailed,
    StageInfo,
    StageLoading,
    StageTrace,
)
from omni_cli.stage.messages import (
    Alive,
    CountersReport,
    Failure,
    MemoryReport,
    Report,
    RequestDone,
    SleepStage,
    SleepState,
    StageReady,
    WakeStage,
)
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.recording import (
    MachineRates,
    Recording,
    RecordingCommand,
    RecordingReport,
    StageDescription,
    Started,
)

_Answer = RecordingReport | SleepState


class OmniLLM:
    """Loads a profile's stages and runs requests through them; owned by one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        verbose: bool = False,
        records: bool = False,
        max_concurrency: int | None = None,
    ) -> None:
        """`verbose` forwards the libraries' output to stderr, from the fork server and from every stage.

        With `records`, stages can record their activity (`record`). With `max_concurrency`, they prepare for no more
        requests at once.
        """
        self._records = records
        self._max_concurrency = max_concurrency
        self._answers: dict[str, asyncio.Future[_Answer]] = {}
        self._verbose = verbose
        self.config = config
        # In the profile's order; a restarted stage gets a new client.
        self._clients: dict[str, StageClient] = {}
        self._infos: dict[str, StageInfo] = {}
        self._loaded: dict[str, asyncio.Future[StageReady]] = {}
        self._requests: dict[str, asyncio.Queue[tuple[str, Report]]] = {}
        self._dead: dict[str, Failure] = {}
        self._on_event: Callable[[Event], None] = lambda event: None
        self._fork_server = ForkServer(config.backends, verbose=verbose)
        self._mps = MpsServer(config)
        self._watchdog: asyncio.Task[None] | None = None
        self._checkpoint: Path | None = None

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint that `start` has loaded."""
        assert self._checkpoint is not None, "nothing has been loaded"
        return self._checkpoint

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """The loaded stages in the profile's order, with their peak memory so far."""
        return tuple(self._infos[name] for name in self._clients if name in self._infos)

    @property
    def failed_stages(self) -> Mapping[str, StageError]:
        """Stages that have ended, and why; requests that need one of them fail."""
        return {name: _stage_error(name, failure) for name, failure in self._dead.items()}

    @property
    def busy_stages(self) -> tuple[str, ...]:
        """Stages with requests to run."""
        return tuple(name for name, client in self._clients.items() if client.silent_s is not None)

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        """Load all stages. Raises the error of the first one that fails, once all of them have ended."""
        if on_event is not None:
            self._on_event = on_event
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        folder = await asyncio.to_thread(check_start, self.config)
        context = self._fork_server.start()
        await asyncio.to_thread(self._mps.start)  # during the imports, as what follows
        if folder is not None:
            threading.Thread(target=read_ahead, args=(folder,), name="omni-read-ahead", daemon=True).start()
        if folder is None:
            folder = await provide_in_child(self.config.model, self._fork_server)
            check_fit(self.config, folder)
        self._checkpoint = folder
        family, architecture = read_family(folder), read_model_kind(folder)
        config = for_family(self.config, family)
        plan = await asyncio.to_thread(plan_start, config, folder)  # during the imports
        if plan is not None:
            config = plan.config
            self._on_event(MemoryPlanned(plan.stages))
        loop = asyncio.get_running_loop()
        for stage in config.stages:
            spec = StageSpec(
                stage=stage,
                model=str(folder),
                family=family,
                architecture=architecture,
                dtype=self.config.dtype,
                seed=self.config.seed,
                trust_remote_code=self.config.trust_remote_code,
                records=self._records,
                max_concurrency=self._max_concurrency,
                mps=self.config.mps,
                mps_folder=self._mps.folder,
                next_stage=next((other for other in config.stages if other.input == stage.name), None),
            )
            client = StageClient(spec, self._handle, verbose=self._verbose)
            self._clients[client.name] = client
            self._loaded[client.name] = loop.create_future()
        self._watchdog = asyncio.create_task(watch(lambda: self._clients.values(), self._give_up))
        groups = load_groups(config.stages)
        for name in (name for group in groups for name in group[0]):
            await self._start_client(self._clients[name], context)
        await asyncio.gather(*(self._load_in_turn(group, context) for group in groups))
        for name, failure in self._dead.items():
            raise failure.error(name)  # it had loaded, and ended while the others were loading

    async def _load_in_turn(self, waves: list[list[str]], context: ForkServerContext) -> None:
        """Start the stages of each wave once those of the previous one have loaded; the first is already starting."""
        for number, wave in enumerate(waves):
            for name in wave if number else ():
                await self._start_client(self._clients[name], context)
            await asyncio.gather(*(self._loaded[name] for name in wave))

    async def _start_client(self, client: StageClient, context: ForkServerContext) -> None:
        self._on_event(StageLoading(client.name, client.kind))
        await client.start(context)

    async def close(self) -> None:
        """Stop every stage's process and its descendants; requests in flight get no more events. Idempotent."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        clients, self._clients = list(self._clients.values()), {}
        if not all(future.done() for future in self._loaded.values()):
            # While stages load: their imports are no longer needed.
            self._fork_server.stop()
            self._fork_server.end_spare()
        await asyncio.gather(*(client.close() for client in clients))
        for future in self._loaded.values():
            # Retrieved, so that asyncio does not report the exception as never retrieved; `start` raised the first one.
            if not future.cancel() and not future.cancelled():
                future.exception()
        self._fork_server.stop()
        await asyncio.to_thread(self._mps.stop)

    def kill(self) -> None:
        """Kill every stage's process now, without waiting; for a second Ctrl-C."""
        for client in self._clients.values():
            client.kill()
        self._fork_server.stop()

    def _give_up(self, name: str, reason: str, hint: str) -> None:
        """End a stage that makes no progress: it fails with `reason`, and so do its requests."""
        client = self._clients[name]
        self._stage_ended(client, Failure("stage", reason, hint))
        client.kill()

    async def restart(self, name: str) -> None:
        """Load a failed stage again, in a new process; requests in the other stages continue.

        Raises the stage's error, after which it may be tried again.
        """
        ended = self._clients[name]
        await ended.close()
        client = StageClient(ended.spec, self._handle, verbose=self._verbose)
        self._clients[name] = client
        self._loaded[name] = asyncio.get_running_loop().create_future()
        await self._start_client(client, self._fork_server.start())
        await self._loaded[name]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Run one request; the last event is its `RequestResult`, which carries the error if it failed.

        Leaving the iterator early (`aclose`) aborts the request in its stages. Raises `InputError` for an unknown LoRA
        adapter.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        self.config.check_adapter(request.lora)
        early = {stage.name for stage in self.config.stages if stage.starts_early}
        streams = request.speech.stream_audio
        if streams is None:
            streams = any(stage.streams for stage in self.config.stages)
        run = RequestRun(request, self._chain(request), self._running, self._trace, streams=streams, early=early)
        self._requests[request.request_id] = run.queue
        error: OmniError | None = None
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    yield event
        except OmniError as raised:
            error = raised
        finally:
            del self._requests[request.request_id]
        stage_output = run.stage_output if request.stage.wants_output and error is None else None
        known = (request.request_id, run.outputs, run.traces, error, stage_output)
        yield RequestResult(*known, tuple(run.audio_arrivals), run.rtf, run.notes)

    async def record(self, command: RecordingCommand, stage: str) -> RecordingReport:
        """Send a recording command to a stage without requests, one at a time. Raises the stage's error."""
        report = await self._ask(command, stage)
        assert not isinstance(report, SleepState)
        return report

    def check_sleep(self, level: int) -> None:
        """Raise `UsageError` if a stage cannot sleep at this level."""
        check_sleep(self.config, level)

    async def sleep(self, level: int, *stages: str) -> None:
        """Put these stages, by default all, to sleep while there are no requests. Raises `OmniError`."""
        for name in stages or tuple(self._clients):
            await self._switch(SleepStage(level), name)

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Put back what vLLM's `tags` name, by default all; return True if all stages are awake then."""
        asleep = [await self._switch(WakeStage(None if tags is None else tuple(tags)), name) for name in self._clients]
        return not any(asleep)

    async def _switch(self, command: SleepStage | WakeStage, stage: str) -> bool:
        state = await self._ask(command, stage)
        assert isinstance(state, SleepState)
        return state.is_asleep

    async def _ask(self, command: RecordingCommand | SleepStage | WakeStage, stage: str) -> _Answer:
        """Send a command that a stage answers, one at a time. Raises the stage's error."""
        client = self._running(stage)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._answers[stage] = answer
        client.send(command)
        return await answer

    def _chain(self, request: GenerateRequest) -> list[str]:
        """Return the stages that this request needs: text needs only the first one."""
        names = [stage.name for stage in self.config.stages]
        return names[:1] if request.modalities == frozenset({"text"}) else names

    def _running(self, name: str) -> StageClient:
        if name not in self._clients:
            raise StageError("the engine has been closed", stage=name)
        if name in self._dead:
            raise _stage_error(name, self._dead[name])
        return self._clients[name]

    def _trace(self, client: StageClient, report: RequestDone) -> StageTrace:
        lists = {name: tuple(value) for name, value in report.trace.items() if isinstance(value, list)}
        fields: dict[str, Any] = {**report.trace, **lists}
        return StageTrace(name=client.name, kind=client.kind, effective=self._infos[client.name].effective, **fields)

    def _handle(self, client: StageClient, report: Report | None) -> None:
        """Handle a report of a stage, or the end of its process (None)."""
        if self._clients.get(client.name, client) is not client:
            return  # the last report of a replaced stage
        match report:
            case None:
                self._stage_ended(client, None)
            case StageReady():
                self._stage_ready(client, report)
            case MemoryReport():
                info, peaks = self._infos[client.name], _peaks(report)
                highest = {name: max(peak, peaks[name]) for name, peak in info.peak_memory_bytes.items()}
                info = dataclasses.replace(info, peak_memory_bytes=highest, run_memory_bytes=peaks)
                self._infos[client.name] = info
            case Started() | Recording() | StageDescription() | MachineRates() | SleepState():
                answer = self._answers.pop(client.name, None)  # None: the stage has been given up
                if answer is not None and not answer.cancelled():
                    answer.set_result(report)
            case Alive():
                pass  # the client has noted the sign of life
            case CountersReport():
                self._infos[client.name] = dataclasses.replace(
                    self._infos[client.name], execution_counters=report.counters
                )
            case Failure(request_id=None):
                self._stage_ended(client, report)
            case _:
                assert report.request_id is not None  # the case above took those
                queue = self._requests.get(report.request_id)
                # A stage may report on a request that has ended, such as on input that came too late.
                if queue is not None:
                    queue.put_nowait((client.name, report))

    def _stage_ready(self, client: StageClient, report: StageReady) -> None:
        peaks = _peaks(report.memory)
        told = msgspec.structs.asdict(report)
        del told["memory"]
        peak = {name: peaks[name] for name in ("device", "host")}
        info = StageInfo(client.name, client.kind, peak_memory_bytes=peak, load_memory_bytes=peaks, **told)
        self._infos[client.name] = info
        self._on_event(StageLoading(client.name, client.kind, self._infos[client.name]))
        loaded = self._loaded[client.name]
        if not loaded.done():  # else its result is no longer needed
            # Here, because the stage may end before the waiter runs.
            self._dead.pop(client.name, None)
            loaded.set_result(report)

    def _stage_ended(self, client: StageClient, failure: Failure | None) -> None:
        loaded = self._loaded[client.name]
        if client.name in self._dead and loaded.done():
            return
        if failure is None:
            failure = client.unexpected_end()
        self._dead[client.name] = failure
        answer = self._answers.pop(client.name, None)
        if answer is not None and not answer.cancelled():
            answer.set_exception(failure.error(client.name))
        if not loaded.done():
            loaded.set_exception(failure.error(client.name))
        for queue in self._requests.values():
            queue.put_nowait((client.name, failure))
        self._on_event(StageFailed(client.name, _stage_error(client.name, failure)))


def _stage_error(name: str, failure: Failure) -> StageError:
    """Return the failure as a new `StageError` each time, because raising it adds a traceback."""
    error = failure.error(name)
    if isinstance(error, StageError):
        return error
    return StageError(error.message, stage=name, hint=error.hint, details=error.details)


def _peaks(memory: MemoryReport) -> dict[str, int]:
    return {"device": memory.device, "reserved": memory.reserved, "host": memory.host}
