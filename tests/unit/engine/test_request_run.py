"""Reports of a chain's stages, in the orders in which their processes can send them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_cli.engine.request_run import RequestRun
from omni_cli.requests.contents import SpeechOptions
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, StageTrace
from omni_cli.stage.messages import RequestDone, StageOutputChunk


@dataclass
class Stage:
    name: str
    sent: list[Any] = field(default_factory=list)

    def send(self, command: Any) -> None:
        self.sent.append(command)


@pytest.mark.parametrize("early", [False, True])
def test_a_sound_has_the_reason_of_its_codes_also_if_it_is_there_first(early):
    async def run() -> tuple[RequestRun, list[str]]:
        request = GenerateRequest("one", prompt="hello", speech=SpeechOptions(stream_audio=True))
        enter: Any = Stage
        chain = RequestRun(
            request, ["talker", "code2wav"], enter,
            lambda stage, done: StageTrace(stage.name, "ar", 0.1, finish_reason=done.trace.get("finish_reason")),
            streams=True, early=(),
        )  # fmt: skip
        codes = ("talker", StageOutputChunk("one", b"codes", is_last=True))
        talker = ("talker", RequestDone("one", {"finish_reason": "length"}))
        sound = AudioOutput(np.zeros(3, np.float32), 24_000)
        code2wav = ("code2wav", RequestDone("one", {}, audio=sound))
        for report in (codes, code2wav, talker) if early else (codes, talker, code2wav):
            chain.queue.put_nowait(report)
        return chain, [type(event).__name__ async for event in chain.events()]

    chain, events = asyncio.run(asyncio.wait_for(run(), 10))
    assert [output.finish_reason for output in chain.outputs] == ["length"]
    assert [trace.name for trace in chain.traces] == ["talker", "code2wav"]
    assert events.count("OutputReady") == 1
