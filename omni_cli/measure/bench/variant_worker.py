"""The process of one variant: `python -m omni_cli.measure.bench.variant_worker`.

Loads its stages, then runs on request.

Started only by `VariantProcess`, which sets its environment before Python starts. It measures with its own clock, so
that activity in the command's process affects no number. It ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from omni_cli.measure.bench.iteration import get_accounted, get_metrics, get_work
from omni_cli.measure.bench.loaded_workload import LoadedWorkload
from omni_cli.measure.bench.outputs import hash_arrays, output_arrays, save_arrays, unhashed_arrays
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.protocol import (
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
    StagePeaks,
    decode_request,
    encode,
)
from omni_cli.measure.bench.workload import RequestFile, Workload
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import StageInfo, StageLoading
from omni_cli.stage.failures import as_failure


class VariantWorker:
    """Answers the command's requests, one after another."""

    def __init__(self, send: Callable[[Reply], None]) -> None:
        self._send = send
        self._loaded: LoadedWorkload | None = None
        self._slo: dict[str, float] = {}

    @property
    def _workload(self) -> LoadedWorkload:
        """The workload of the first request, a `Load`."""
        assert self._loaded is not None, "nothing has been loaded"
        return self._loaded

    async def serve(self, requests: asyncio.Queue[Request | None]) -> None:
        """Answer until `Close`, the end of stdin (None), or a failure, which is reported."""
        try:
            while True:
                match await requests.get():
                    case None | Close():
                        return
                    case Load() as request:
                        self._send(await self._load(request))
                    case Run() as request:
                        self._send(await self._run(request))
        except Exception as error:  # noqa: BLE001 - the command reports every failure
            self._send(Failed(as_failure(error)))

    async def close(self) -> None:
        """End the stages."""
        if self._loaded is not None:
            await self._loaded.close()

    async def _load(self, request: Load) -> Loaded:
        source = ProfileSource(
            request.profile, request.overrides, request.model, request.seed, request.trust_remote_code
        )
        workload = Workload(
            request.stage,
            request.batch_size,
            request.input_len,
            request.output_len,
            request.given_lengths,
            None if request.requests is None else RequestFile(Path(request.requests), request.batch_size, ""),
        )
        self._slo = request.slo
        self._loaded = LoadedWorkload(source.load(), workload, verbose=request.verbose)
        await self._loaded.load(self._on_event, inputs=Path(request.inputs), makes_inputs=request.records_inputs)
        return Loaded(tuple(self._loaded_stage(info) for info in self._workload.llm.stages))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StageLoading):
            load_s = None if event.info is None else event.info.load_s
            self._send(Loading(event.name, event.kind, load_s))

    def _loaded_stage(self, info: StageInfo) -> LoadedStage:
        stage = self._workload.config.stage(info.name)
        read_back = {**info.settings, **info.effective}
        requested = {name: value for name, value in stage.model_dump(exclude_none=True).items() if name in read_back}
        return LoadedStage(
            info.name, info.kind, info.load_s, requested,
            dict(info.settings), dict(info.effective), dict(info.execution_counters),
        )  # fmt: skip

    async def _run(self, request: Run) -> Ran:
        iteration = await self._workload.run(request.number)
        results = [finished.result for finished in iteration.requests]
        arrays = output_arrays(results)
        if request.outputs is not None:
            save_arrays(Path(request.outputs), {**arrays, **unhashed_arrays(results, iteration.prompts)})
        return Ran(
            e2e_s=iteration.e2e_s,
            metrics=get_metrics(iteration, self._slo),
            work=get_work(iteration),
            output_sha256=hash_arrays(arrays),
            accounted=dict(get_accounted(iteration)),
            memory={
                info.name: StagePeaks(dict(info.load_memory_bytes), dict(info.run_memory_bytes))
                for info in self._workload.llm.stages
            },
            execution_counters={info.name: dict(info.execution_counters) for info in self._workload.llm.stages},
            notes=iteration.notes,
        )


def _read_requests(
    descriptor: int, loop: asyncio.AbstractEventLoop, requests: asyncio.Queue[Request | None], gone: asyncio.Event
) -> None:
    # Not a file object: Python cannot shut down while this thread holds the lock of one.
    rest = b""
    # Once the loop is closed, nobody needs the request.
    with suppress(RuntimeError):
        while chunk := os.read(descriptor, 2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(requests.put_nowait, decode_request(line))
        loop.call_soon_threadsafe(requests.put_nowait, None)
        loop.call_soon_threadsafe(gone.set)


async def _serve(stdin: int, stdout: BinaryIO) -> None:
    def send(reply: Reply) -> None:
        # The command may have ended, which the end of stdin shows as well.
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
    # In any state, because its result is no longer needed.
    work.cancel()
    await asyncio.wait({work})
    await worker.close()


def main() -> None:
    # The command handles Ctrl-C; output of libraries must not get between the messages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = os.dup(0), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    asyncio.run(_serve(stdin, stdout))


if __name__ == "__main__":
    main()
