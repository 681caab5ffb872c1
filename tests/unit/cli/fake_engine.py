"""An engine of two scripted stages for tests of the command around it; the prompt selects the script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import CheckpointError, InputError, OmniError, StageError
from omni_cli.requests.events import Event, TextDelta
from omni_cli.requests.outputs import (
    AudioOutput,
    GenerateRequest,
    ImageOutput,
    Output,
    OutputReady,
    RequestResult,
    StageInfo,
    StageLoading,
    StageProgress,
    StageTrace,
    TextOutput,
)

SAMPLE_RATE = 24000


class FakeEngine:
    """Answers the words of the prompt in capitals, one delta a word.

    Words with a meaning: `late` finishes after the others, `meet` waits until as many requests as may run are there,
    `stall` stops after its text, `input-error` and
    `stage-error` fail, `noted` is a request that is changed, `crash` raises what no engine should. The models
    `fail_start`, `stall_start` and `stall_close` do so while loading and closing.
    """

    instances: list[FakeEngine] = []  # noqa: RUF012 - what a test looks at afterwards

    def __init__(self, config: EngineConfig, *, verbose: bool, max_concurrency: int) -> None:
        self.config = config
        self.verbose = verbose
        self.max_concurrency = max_concurrency
        self.meeting = asyncio.Barrier(max(1, max_concurrency))
        self.requests: list[GenerateRequest] = []
        self.closed = 0
        self.stages: tuple[StageInfo, ...] = ()
        FakeEngine.instances.append(self)

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        infos = []
        for stage in self.config.stages:
            on_event(StageLoading(stage.name, stage.kind))
            if "fail_start" in self.config.model:
                raise CheckpointError("the checkpoint is broken", hint="build it again")
            if "stall_start" in self.config.model:
                announce("loading")
                await asyncio.sleep(600)
            memory = {"device": 0, "host": 2**28}
            info = StageInfo(stage.name, stage.kind, 0.25, memory, {"output_copy": "async"})
            on_event(StageLoading(stage.name, stage.kind, info))
            infos.append(info)
        self.stages = tuple(infos)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        words = (request.prompt or "nothing").split()
        if "crash" in words:
            raise RuntimeError("boom")
        if "late" in words:
            await asyncio.sleep(0.2)
        if "meet" in words:
            await asyncio.wait_for(self.meeting.wait(), 60)
        outputs: list[Output] = []
        text = " ".join(word.upper() for word in words)
        if self.config.stages[0].kind == "ar":
            for index, word in enumerate(words):
                yield StageProgress(request.request_id, self.config.stages[0].name, index + 1, None, "token")
                yield TextDelta(request.request_id, (" " if index else "") + word.upper())
                await asyncio.sleep(0)
            outputs.append(TextOutput(text, tuple(range(len(words))), "stop"))
            yield OutputReady(request.request_id, outputs[-1])
        if "stall" in words:
            announce("stalled")
            await asyncio.sleep(600)
        error: OmniError | None = None
        if "input-error" in words:
            error = InputError("the prompt has 9 tokens; the model takes 8", hint="shorten it")
        elif "stage-error" in words:
            own = {"request_id": request.request_id, "details": "the talker's traceback"}
            error = StageError("the talker ran out of memory", stage="talker", **own)
        elif media := self._media(request):
            outputs.append(media)
            yield OutputReady(request.request_id, media)
        notes = (*request.notes, *(["the image is larger"] if "noted" in words else []))
        yield RequestResult(request.request_id, tuple(outputs), self._traces(words), error, notes=notes)

    def _media(self, request: GenerateRequest) -> Output | None:
        wanted = request.modalities or {"audio", "image"}
        if self.config.stages[0].kind == "diffusion":
            return ImageOutput(np.full((4, 6, 3), request.seed, np.uint8))
        return AudioOutput(np.zeros(SAMPLE_RATE // 2, np.float32), SAMPLE_RATE) if "audio" in wanted else None

    def _traces(self, words: list[str]) -> tuple[StageTrace, ...]:
        return tuple(
            StageTrace(
                stage.name,
                stage.kind,
                0.5,
                ttft_s=0.038,
                num_input_tokens=len(words),
                num_output_tokens=len(words),
                output_token_ids=tuple(range(len(words))),
                effective={"output_copy": "async"},
            )
            if stage.kind == "ar"
            else StageTrace(stage.name, stage.kind, 0.25, num_inference_steps=10)
            for stage in self.config.stages
        )

    async def close(self) -> None:
        self.closed += 1
        if "stall_close" in self.config.model:
            child = await asyncio.create_subprocess_exec("sleep", "600")
            announce("closing")
            await child.wait()
        announce("closed")


def announce(word: str) -> None:
    """Tell a test in another process how far this one is."""
    if "FAKE_ENGINE_LOG" in os.environ:
        with Path(os.environ["FAKE_ENGINE_LOG"]).open("a") as log:
            log.write(word + "\n")


def main() -> None:
    """The `omni` command on this engine, for tests that need a process of its own."""
    import omni_cli.cli.generate.command
    from omni_cli.cli.app import main as run_command_line

    command: Any = omni_cli.cli.generate.command
    command.make_engine = FakeEngine
    run_command_line()


if __name__ == "__main__":
    main()
