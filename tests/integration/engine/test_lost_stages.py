"""A stage that dies directly after it has loaded, while the engine starts or while the stage is restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import StageError
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageLoading

pytestmark = pytest.mark.slow


def kill(llm: OmniLLM, name: str) -> None:
    """Kill a stage, and block the event loop until the stage's end is its next event."""
    os.kill(llm._clients[name]._process.pid, signal.SIGKILL)
    (reader,) = [thread for thread in threading.enumerate() if thread.name == f"omni-{name}-reader"]
    reader.join()


def test_while_the_others_load() -> None:
    async def run() -> None:
        llm = OmniLLM(load_profile("tiny-omni", [], None, False, None))
        killed: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, StageLoading) and event.info is not None and not killed:
                killed.append(event.name)
                kill(llm, event.name)

        try:
            with pytest.raises(StageError, match="SIGKILL") as caught:
                await llm.start(on_event)
            assert [caught.value.stage] == killed and llm._clients == {}
        finally:
            await llm.close()

    asyncio.run(run())


def test_when_it_has_just_been_started_again() -> None:
    async def run() -> None:
        llm = OmniLLM(load_profile("tiny-image", [], None, False, None))
        dies = False

        def on_event(event: Event) -> None:
            if isinstance(event, StageLoading) and event.info is not None and dies:
                kill(llm, "image")

        async def ask(name: str) -> RequestResult:
            (*_, result) = [event async for event in llm.generate(GenerateRequest(name, "a cat"))]
            assert isinstance(result, RequestResult)
            return result

        await llm.start(on_event)
        try:
            kill(llm, "image")
            failed = await ask("first")
            assert failed.error is not None and "SIGKILL" in failed.error.message
            dies = True
            await llm.restart("image")
            await asyncio.sleep(0.1)
            assert list(llm.failed_stages) == ["image"], "it has ended again, and that is known"
            dies = False
            await llm.restart("image")
            assert llm.failed_stages == {} and (await ask("second")).error is None
        finally:
            await llm.close()
        late = await ask("third")
        assert late.error is not None and late.error.message == "the engine has been closed"

    asyncio.run(run())
