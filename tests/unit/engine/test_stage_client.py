"""The watchdog watches stages that have something to run, in whatever order messages cross."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from typing import Any

import pytest

from omni_cli.config.families import get_family
from omni_cli.config.schema import ARStageConfig
from omni_cli.engine.process.stage_client import StageClient
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    AppendInput,
    Failure,
    Progress,
    RequestDone,
    decode_commands,
)
from omni_cli.stage.protocol import StageSpec

WHOLE = AddRequest(GenerateRequest("a"))
BEGUN = AddRequest(GenerateRequest("a", stage=StageIO(more_follows=True)))
MORE = AppendInput("a", b"", is_last=False)
REST = AppendInput("a", b"", is_last=True)
GONE = AbortRequest("a")
OTHER = AddRequest(GenerateRequest("b"))

STEP = Progress("a", 1, 2, "step")
DONE = RequestDone("a", {})
FAILED = Failure("stage", "it broke", request_id="a")


def new_client() -> StageClient:
    family = get_family("Qwen2_5OmniModel")
    spec = StageSpec(ARStageConfig.create("talker"), "folder", family, family.architectures[0], "float32", 0, False)
    return StageClient(spec, lambda client, report: None)


async def is_busy_after(*messages: Any) -> bool:
    client = new_client()
    for message in messages:
        if isinstance(message, AddRequest | AppendInput | AbortRequest):
            client.send(message)
        else:
            client._handle(message)
    return client.silent_s is not None


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((), False),
        ((WHOLE,), True),
        ((WHOLE, STEP), True),
        ((WHOLE, DONE), False),
        ((WHOLE, FAILED), False),
        ((WHOLE, GONE), False),
        ((BEGUN,), False),  # it may have to wait for the rest
        ((BEGUN, MORE), False),
        ((BEGUN, MORE, REST), True),
        ((BEGUN, REST, DONE), False),
        ((BEGUN, DONE, REST), False),  # ended while the rest was on its way: a talker may say less than is written
        ((BEGUN, FAILED, MORE, REST), False),
        ((BEGUN, GONE, REST), False),
        ((WHOLE, OTHER, DONE), True),
        ((OTHER, BEGUN, DONE, REST), True),
        ((OTHER, BEGUN, FAILED), True),
        ((WHOLE, GONE, WHOLE, DONE), True),  # the end of the one that was aborted
    ],
)
def test_busy(messages: tuple[Any, ...], expected: bool) -> None:
    assert asyncio.run(is_busy_after(*messages)) is expected


def test_commands_that_came_together_are_sent_at_once() -> None:
    async def sent() -> list[Any]:
        client = new_client()
        client._connection, theirs = multiprocessing.Pipe()
        client.send(BEGUN)
        client.send(OTHER)
        client._writer.start()
        together = decode_commands(theirs.recv_bytes())
        client.send(REST)
        last = decode_commands(theirs.recv_bytes())
        content = bytes(100)
        client._outbox.put(content)
        assert theirs.recv_bytes() == content
        deadline_s = time.monotonic() + 10
        while sys.getrefcount(content) > 2:  # it may be an hour of sound, and the next one may be far
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        client._outbox.put(b"")
        client._writer.join()
        return [together, last]

    together, last = asyncio.run(sent())
    assert [command.request.request_id for command in together] == ["a", "b"] and last == [REST]
