"""Messages other than commands end a stage immediately with one error, whatever it is doing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from omni_cli.core.errors import StageError
from omni_cli.requests.outputs import GenerateRequest, StageProgress

pytestmark = pytest.mark.slow

SECONDS = 30  # the watchdog would end a silent stage after 600


@pytest.fixture(scope="module")
def engine(start_engine: Any) -> Any:
    return start_engine("tiny-image", "image.num_inference_steps=1000")


@pytest.mark.parametrize("garbled", [b"\xc1\xc1", b"\x81\xa4type\xa5Alive"], ids=repr)
def test_a_garbled_command_ends_the_stage_with_an_error(engine: Any, garbled: bytes) -> None:
    if "image" in engine.llm.failed_stages:
        engine._call(engine.llm.restart("image"))
    client = engine.llm._clients["image"]
    client._outbox.put(garbled)  # before the request's own, which the stage then never gets to
    began_s = time.monotonic()
    result = engine.run(GenerateRequest(f"after {garbled!r}", "a cat"))
    assert time.monotonic() - began_s < SECONDS
    assert isinstance(result.error, StageError)
    assert result.error.message.startswith("stage `image`: could not decode a command: ")
    assert "Traceback" not in result.error.message and "Traceback" in (result.error.details or "")
    assert list(engine.llm.failed_stages) == ["image"]
    client._process.join(SECONDS)
    assert client._process.exitcode is not None and not client._scratch.exists()


def test_in_the_middle_of_a_step(engine: Any) -> None:
    engine._call(engine.llm.restart("image"))
    client = engine.llm._clients["image"]

    async def run() -> Any:
        async for event in engine.llm.generate(GenerateRequest("running", "a cat")):
            if isinstance(event, StageProgress):
                client._outbox.put(b"\xc1")
        return event

    began_s = time.monotonic()
    result = engine._call(run())
    assert time.monotonic() - began_s < SECONDS
    assert isinstance(result.error, StageError) and "could not decode a command" in result.error.message
