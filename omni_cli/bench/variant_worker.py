"""The process of one variant: `python -m omni_cli.bench.variant_worker`. Loads its stages, then runs on request.

Only started by `VariantProcess`, which sets its environment before Python starts. It measures with its own clock, so
that what goes on in the command's process is in no number. It ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.bench.metrics import Finished, Iteration, accounted_of, metrics_of, work_of
from omni_cli.bench.outputs import hash_arrays, output_arrays, save_arrays
from omni_cli.bench.prompts import Prompts
from omni_cli.bench.protocol import (
    PROTOCOL,
    Close,
    Failed,
    Hello,
    Load,
    Loaded,
    LoadedStage,
    Loading,
    Ran,
    Reply,
    Request,
    Run,
    StageMemory,
    decode_request,
    encode,
)
from omni_cli.bench.workload import has_successor, measured_stages, stages_before, with_fixed_work
from omni_cli.config.engine_config import EngineConfig
from omni_cli.config.loader import load_profile
from omni_cli.engine.fork_server import ForkServer
from omni_cli.engine.messages import Failure
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.errors import OmniError, StageError
from omni_cli.models.checkpoints import resolve_model
from omni_cli.outputs import AudioOutput, Event, GenerateRequest, OutputReady, RequestResult, StageInfo, StageLoading

_MAX_SEED = 2**32


class VariantWorker:
    """Answers the command's requests, one after another. `llm` is what it has loaded, None before."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.llm: OmniLLM | None = None
        self._fork_server: ForkServer | None = None
        self._load_request: Load
        self._config: EngineConfig
        self._prompts: Prompts | None = None
        self._handoffs: list[bytes] = []

    async def serve(self, requests: asyncio.Queue[Request | None]) -> None:
        """Until `Close`, the end of stdin (None), or a failure, which is reported."""
        try:
            while True:
                match await requests.get():
                    case None | Close():
                        return
                    case Load() as request:
                        self._send(await self._load(request))
                    case Run() as request:
                        self._send(await self._run(request))
        except OmniError as error:
            details = getattr(error, "details", None) or traceback.format_exc()
            self._send(Failed(Failure.of(error, details=details)))
        except Exception as error:  # noqa: BLE001 - whatever fails here must be told by the command
            message = f"{type(error).__name__}: {error}"
            self._send(Failed(Failure("stage", message, details=traceback.format_exc())))

    async def close(self) -> None:
        """End the stages."""
        # First: an engine that still loads would wait for imports that nobody wants any more.
        if self._fork_server is not None:
            self._fork_server.stop()
        if self.llm is not None:
            await self.llm.close()

    async def _load(self, request: Load) -> Loaded:
        config = load_profile(
            request.profile,
            overrides=request.overrides,
            model=request.model,
            trust_remote_code=request.trust_remote_code,
            seed=request.seed,
        )
        config = with_fixed_work(config, request.output_len, request.given_lengths)
        measured = measured_stages(config, request.stage)
        self._load_request, self._config = request, config
        # One fork server for all engines of this process: its imports take seconds.
        self._fork_server = ForkServer(verbose=request.verbose)
        self._fork_server.start()
        before = stages_before(config, measured)
        if before and request.records_inputs:
            await self._record_inputs(before)
        elif before:
            self._handoffs = msgspec.msgpack.decode(Path(request.inputs).read_bytes(), type=list[bytes])
        await self._start(dataclasses.replace(config, stages=measured))
        return Loaded(tuple(self._loaded_stage(info) for info in self.llm.stages))

    async def _start(self, config: EngineConfig) -> None:
        self.llm = OmniLLM(config, verbose=self._load_request.verbose)
        await self.llm.start(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StageLoading):
            load_s = None if event.info is None else event.info.load_s
            self._send(Loading(event.name, event.kind, load_s))

    async def _record_inputs(self, stages: tuple[Any, ...]) -> None:
        """Run the stages before the measured ones once, keep what they leave behind, and let them go."""
        await self._start(dataclasses.replace(self._config, stages=stages))
        requests = [
            dataclasses.replace(request, wants_handoff=True)
            for request in await asyncio.to_thread(self._requests, Run(0))
        ]
        iteration = await run_all(self.llm, requests)
        handoffs = [finished.result.handoff for finished in iteration.requests]
        if not all(handoffs):
            raise StageError(f"stage `{stages[-1].name}` left nothing for the next one", stage=stages[-1].name)
        self._handoffs = handoffs
        Path(self._load_request.inputs).write_bytes(msgspec.msgpack.encode(handoffs))
        await self.llm.close()

    def _loaded_stage(self, info: StageInfo) -> LoadedStage:
        stage = self._config.stage(info.name)
        read_back = {**info.settings, **info.effective}
        requested = {name: getattr(stage, name) for name in read_back if getattr(stage, name, None) is not None}
        return LoadedStage(
            info.name, info.kind, info.load_s, requested,
            dict(info.settings), dict(info.effective), dict(info.engagement),
        )  # fmt: skip

    async def _run(self, request: Run) -> Ran:
        requests = await asyncio.to_thread(self._requests, request)
        iteration = await run_all(self.llm, requests)
        arrays = output_arrays([finished.result for finished in iteration.requests])
        if request.outputs is not None:
            save_arrays(Path(request.outputs), arrays)
        return Ran(
            e2e_s=iteration.e2e_s,
            metrics=metrics_of(iteration),
            work=work_of(iteration),
            output_sha256=hash_arrays(arrays),
            accounted=dict(accounted_of(iteration)),
            memory={
                info.name: StageMemory(dict(info.load_memory_bytes), dict(info.run_memory_bytes))
                for info in self.llm.stages
            },
            engagement={info.name: dict(info.engagement) for info in self.llm.stages},
        )

    def _requests(self, run: Run) -> list[GenerateRequest]:
        """The iteration's requests. A stage in the middle of the chain gets the same recorded input each time."""
        load = self._load_request
        wants_handoff = has_successor(self._config, measured_stages(self._config, load.stage))
        if self._prompts is None and not self._handoffs:
            self._prompts = Prompts(resolve_model(self._config.model), load.input_len)
        requests = []
        for index in range(load.batch_size):
            number = run.number * load.batch_size + index
            requests.append(
                GenerateRequest(
                    request_id=f"{run.number}-{index}",
                    prompt="" if self._prompts is None else self._prompts.draw(run.number, index),
                    raw=True,
                    seed=(self._config.seed + number) % _MAX_SEED,
                    handoff=self._handoffs[index] if self._handoffs else None,
                    wants_handoff=wants_handoff,
                )
            )
        return requests


async def run_all(llm: OmniLLM, requests: list[GenerateRequest]) -> Iteration:
    """All requests at once. Raises what the first one that failed has failed with."""
    started_s = time.perf_counter()
    finished = await asyncio.gather(*(_follow(llm, request) for request in requests))
    e2e_s = time.perf_counter() - started_s
    return Iteration(e2e_s, tuple(finished), tuple((info.name, info.kind) for info in llm.stages))


async def _follow(llm: OmniLLM, request: GenerateRequest) -> Finished:
    started_s = time.perf_counter()
    first_audio_s = None
    async for event in llm.generate(request):
        if isinstance(event, OutputReady) and isinstance(event.output, AudioOutput) and first_audio_s is None:
            first_audio_s = time.perf_counter() - started_s
        elif isinstance(event, RequestResult):
            if event.error is not None:
                raise event.error
            return Finished(event, time.perf_counter() - started_s, first_audio_s)
    raise StageError("a request ended without a result", stage=llm.stages[-1].name)


def _read_requests(
    descriptor: int, loop: asyncio.AbstractEventLoop, requests: asyncio.Queue, gone: asyncio.Event
) -> None:
    # Not a file object: one whose lock this thread holds cannot be taken down when Python ends.
    rest = b""
    # Nothing is left to tell once the loop is closed.
    with suppress(RuntimeError):
        while chunk := os.read(descriptor, 2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(requests.put_nowait, decode_request(line))
        loop.call_soon_threadsafe(requests.put_nowait, None)
        loop.call_soon_threadsafe(gone.set)


async def _serve(stdin: int, stdout: Any) -> None:
    def send(reply: Reply) -> None:
        # The command may be gone; the end of stdin says so as well.
        with suppress(BrokenPipeError):
            stdout.write(encode(reply) + b"\n")
            stdout.flush()

    requests: asyncio.Queue[Request | None] = asyncio.Queue()
    gone = asyncio.Event()
    arguments = (stdin, asyncio.get_running_loop(), requests, gone)
    threading.Thread(target=_read_requests, args=arguments, daemon=True).start()
    send(Hello(PROTOCOL))
    worker = VariantWorker(send)
    work = asyncio.create_task(worker.serve(requests))
    watch = asyncio.create_task(gone.wait())
    await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
    watch.cancel()
    # Whatever it is doing: nobody waits for it any more.
    work.cancel()
    await asyncio.wait({work})
    await worker.close()


def main() -> None:
    # Ctrl-C is the command's to answer; libraries' prints must not get between the messages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = os.dup(0), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    asyncio.run(_serve(stdin, stdout))


if __name__ == "__main__":
    main()
