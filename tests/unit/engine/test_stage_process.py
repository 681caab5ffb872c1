"""The loop of a stage's process."""

from __future__ import annotations

import queue
import weakref
from typing import Any, cast

import numpy as np

from omni_cli.engine.process.stage_process import _serve
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AddRequest, Command, StopStage


class Forgetful:
    """A stage that is done with a request at once."""

    def add(self, request: GenerateRequest) -> None:
        pass

    def has_work(self) -> bool:
        return False


def test_a_stage_that_waits_holds_no_sound_of_the_request_before() -> None:
    sound = np.zeros(16_000, np.float32)
    held = weakref.ref(sound)
    commands: list[Command] = [
        AddRequest(GenerateRequest("0", media=Media(audio=((sound, 16_000),)))),
        StopStage(),
    ]
    del sound
    seen: list[bool] = []

    class Inbox:
        def get(self) -> Command:
            seen.append(held() is not None)
            return commands.pop(0)

    inbox, stage = cast("queue.SimpleQueue[Command]", Inbox()), cast(Any, Forgetful())
    _serve(cast(Any, None), stage, inbox, cast(Any, None), None)
    assert seen == [True, False]
