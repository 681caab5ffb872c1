"""Reports of a chain's stages, in the orders in which their processes can send them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_cli.core.errors import InputError
from omni_cli.engine.request_run import RequestRun
from omni_cli.requests.contents import SpeechOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, OutputReady, StageTrace, TextOutput
from omni_cli.stage.messages import Failure, RequestDone, StageOutputChunk


@dataclass
class Stage:
    name: str
    sent: list[Any] = field(default_factory=list)

    def send(self, command: Any) -> None:
        self.sent.append(command)


@pytest.mark.parametrize(
    "order",
    [
        ("thinker", "talker", "code2wav"),
        ("thinker", "code2wav", "talker"),  # the sound is there first
        ("talker", "thinker", "code2wav"),  # the speech was cut while the text goes on
        ("talker", "code2wav", "thinker"),
    ],
)
def test_a_sound_comes_after_the_text_and_has_the_reason_of_its_codes_in_any_order(order):
    async def run() -> tuple[RequestRun, list[type]]:
        request = GenerateRequest("one", prompt="hello", speech=SpeechOptions(stream_audio=True))
        enter: Any = Stage
        chain = RequestRun(
            request, ["thinker", "talker", "code2wav"], enter,
            lambda stage, done: StageTrace(stage.name, "ar", 0.1, finish_reason=done.trace.get("finish_reason")),
            streams=True, early=(),
        )  # fmt: skip
        sound = AudioOutput(np.zeros(3, np.float32), 24_000)
        done = {
            "thinker": RequestDone("one", {"finish_reason": "stop"}, text=TextOutput("hi", (), "stop")),
            "talker": RequestDone("one", {"finish_reason": "length"}),
            "code2wav": RequestDone("one", {}, audio=sound),
        }
        chain.queue.put_nowait(("thinker", StageOutputChunk("one", b"tokens", is_last=False)))
        chain.queue.put_nowait(("talker", StageOutputChunk("one", b"codes", is_last=True)))
        for name in order:
            chain.queue.put_nowait((name, done[name]))
        return chain, [type(event.output) async for event in chain.events() if isinstance(event, OutputReady)]

    chain, outputs = asyncio.run(asyncio.wait_for(run(), 10))
    assert [output.finish_reason for output in chain.outputs] == ["stop", "length"]
    assert [trace.name for trace in chain.traces] == ["thinker", "talker", "code2wav"]
    assert outputs == [TextOutput, AudioOutput]


@pytest.mark.parametrize("streams, fails_early", [(False, False), (True, False), (True, True)])
def test_the_text_is_kept_when_a_later_stage_fails(streams, fails_early):
    """Except that of a stream without text so far, which then fails as a whole."""
    texts: list[str] = []

    async def run() -> RequestRun:
        chain = RequestRun(
            GenerateRequest("one", prompt="hello"), ["thinker", "talker", "code2wav"], Stage,  # type: ignore[arg-type]
            lambda stage, done: StageTrace(stage.name, "ar", 0.1),
            streams=streams, early=("talker", "code2wav"),
        )  # fmt: skip
        if not fails_early:
            chain.queue.put_nowait(("thinker", TextDelta("one", "h", 1, 1)))
        chain.queue.put_nowait(("thinker", StageOutputChunk("one", b"tokens", is_last=False)))
        chain.queue.put_nowait(("talker", StageOutputChunk("one", b"codes", is_last=True)))
        chain.queue.put_nowait(("talker", RequestDone("one", {})))
        chain.queue.put_nowait(("code2wav", Failure("input", "too long", request_id="one")))
        chain.queue.put_nowait(("thinker", TextDelta("one", "i", 1, 2)))
        chain.queue.put_nowait(("thinker", StageOutputChunk("one", b"more", is_last=True)))
        chain.queue.put_nowait(("thinker", RequestDone("one", {}, text=TextOutput("hi", (), "stop"))))
        with pytest.raises(InputError, match="too long"):
            async for event in chain.events():
                texts.extend([event.text] if isinstance(event, TextDelta) else ())
        return chain

    outputs = asyncio.run(asyncio.wait_for(run(), 10)).outputs
    assert ("".join(texts), len(outputs)) == (("", 0) if fails_early else ("hi", 1))
