"""A workload with its stages loaded: makes the requests of each iteration and runs them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from omni_cli.config.bounds import MAX_SEED
from omni_cli.config.families import get_family_of_stages
from omni_cli.config.schema import EngineConfig, StageConfig
from omni_cli.core.errors import StageError
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.engine.process.fork_server import ForkServer
from omni_cli.measure.bench.iteration import Finished, Iteration
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.measure.bench.workload import (
    Workload,
    has_successor,
    measured_requests,
    measured_stages,
    stages_before,
    with_fixed_work,
)
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.contents import Media, StageIO, TextOptions, TranscriptionOptions
from omni_cli.requests.events import Event
from omni_cli.requests.media.audio import read_speech
from omni_cli.requests.outputs import GenerateRequest, RequestResult


class LoadedWorkload:
    """The workload of `config`, with fixed lengths. `llm` is the engine once `load` has run.

    With `records`, the stages can be asked to record what they do.
    """

    def __init__(
        self, config: EngineConfig, workload: Workload, *, verbose: bool = False, records: bool = False
    ) -> None:
        self.config = with_fixed_work(config, workload.output_len, workload.given_lengths)
        self.measured = measured_stages(self.config, workload.stage)
        self._llm: OmniLLM | None = None
        self._workload = workload
        self._verbose = verbose
        self._records = records
        # One fork server for all engines of this process, because its imports take seconds.
        self._fork_server = ForkServer(self.config.backends, verbose=verbose)
        self._prompts: Prompts | None = None
        self._transcribes = Capabilities.of(config).transcribes
        self._file_requests: tuple[tuple[GenerateRequest, bool], ...] = ()
        self._stage_outputs: list[bytes] = []

    async def load(self, on_event: Callable[[Event], None], *, inputs: Path, makes_inputs: bool) -> None:
        """Load the measured stages.

        Inputs of stages that are not the first of the chain are read from the file `inputs`, or (`makes_inputs`) made
        by running the earlier stages once and written there. Raises the error of the first stage that fails.
        """
        self._fork_server.start()
        before = stages_before(self.config, self.measured)
        if before and makes_inputs:
            self._stage_outputs = await self._make_inputs(before, on_event)
            inputs.write_bytes(msgspec.msgpack.encode(self._stage_outputs))
        elif before:
            self._stage_outputs = msgspec.msgpack.decode(inputs.read_bytes(), type=list[bytes])
        await self._start(self.measured, on_event)

    @property
    def llm(self) -> OmniLLM:
        """The engine that `load` started."""
        assert self._llm is not None, "nothing has been loaded"
        return self._llm

    async def close(self) -> None:
        """End the stages."""
        # Before the engine: one that is still loading would wait for imports that are no longer needed.
        self._fork_server.stop()
        if self._llm is not None:
            await self._llm.close()

    async def run(self, number: int) -> Iteration:
        """Run the workload once; equal numbers mean equal prompts and seeds."""
        return await run_all(self.llm, await asyncio.to_thread(self._requests, number))

    async def _start(self, stages: tuple[StageConfig, ...], on_event: Callable[[Event], None]) -> None:
        config = self.config.with_stages(stages)
        self._llm = OmniLLM(config, verbose=self._verbose, records=self._records)
        await self._llm.start(on_event)

    async def _make_inputs(self, before: tuple[StageConfig, ...], on_event: Callable[[Event], None]) -> list[bytes]:
        """Run the stages before the measured ones once, keep their outputs, and close them."""
        await self._start(before, on_event)
        requests = [
            dataclasses.replace(request, stage=dataclasses.replace(request.stage, wants_output=True))
            for request in await asyncio.to_thread(self._requests, 0)
        ]
        iteration = await run_all(self.llm, requests)
        await self.llm.close()
        stage_outputs = [
            finished.result.stage_output for finished in iteration.requests if finished.result.stage_output
        ]
        if len(stage_outputs) < len(requests):
            raise StageError(f"stage `{before[-1].name}` produced no input for the next one", stage=before[-1].name)
        return stage_outputs

    def _requests(self, number: int) -> list[GenerateRequest]:
        """Make the iteration's requests. A stage in the middle of the chain gets the same recorded input each time."""
        file = self._workload.requests
        if file is not None and not self._file_requests:
            self._file_requests = measured_requests(file.path, self.config)
        if self._prompts is None and file is None and not self._stage_outputs and not self._transcribes:
            family = get_family_of_stages(self.config.model, self.config.stages)
            frame = ("", "") if family is None else family.prompt_frame
            self._prompts = Prompts(str(self.llm.checkpoint), self._workload.input_len, frame=frame)
        wants_stage_output = has_successor(self.config, self.measured)
        requests = []
        for index in range(self._workload.batch_size):
            seed = self.config.seed + number * self._workload.batch_size + index
            requests.append(
                dataclasses.replace(
                    self._request(number, index, seed if seed <= MAX_SEED else seed - 2**64),
                    request_id=f"{number}-{index}",
                    stage=StageIO(
                        input=self._stage_outputs[index] if self._stage_outputs else None,
                        wants_output=wants_stage_output,
                        wants_frames=True,
                    ),
                )
            )
        return requests

    def _request(self, number: int, index: int, seed: int) -> GenerateRequest:
        if self._file_requests:
            request, has_seed = self._file_requests[index]
            seed = request.seed if has_seed else seed
            # Prompts and media repeat in each iteration; the salt keeps caches from using earlier ones. Its notes have
            # been shown.
            return dataclasses.replace(request, seed=seed, cache_salt=f"iteration {number}", notes=())
        if self._transcribes:
            speech = read_speech()
            sound = speech[(number * self._workload.batch_size + index) % len(speech)]
            return GenerateRequest(
                request_id="", media=Media(audio=(sound,)), transcription=TranscriptionOptions(language="en"), seed=seed
            )
        prompt = "" if self._prompts is None else self._prompts.draw(number, index)
        return GenerateRequest(request_id="", prompt=prompt, text=TextOptions(raw=True), seed=seed)


async def run_all(llm: OmniLLM, requests: list[GenerateRequest]) -> Iteration:
    """Run all requests at once. Raises the error of the first one that failed."""
    followed = await asyncio.gather(*(_follow(llm, request) for request in requests))
    # By the requests' own clocks, which do not include the time until this task runs again.
    e2e_s = max(ended_s for _, ended_s, _ in followed) - min(started_s for started_s, _, _ in followed)
    finished = tuple(Finished(result, ended_s - started_s) for started_s, ended_s, result in followed)
    prompts = tuple(request.prompt or "" for request in requests)
    return Iteration(e2e_s, finished, tuple((info.name, info.kind) for info in llm.stages), prompts)


async def _follow(llm: OmniLLM, request: GenerateRequest) -> tuple[float, float, RequestResult]:
    """Return the times of sending and of the result, by `time.perf_counter`, and the result."""
    started_s = time.perf_counter()
    async for event in llm.generate(request):
        if isinstance(event, RequestResult):
            ended_s = time.perf_counter()
            if event.error is not None:
                raise event.error
            return started_s, ended_s, event
    raise StageError("a request ended without a result", stage=llm.stages[-1].name)
