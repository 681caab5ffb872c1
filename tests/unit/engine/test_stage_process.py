"""The loop of a stage's process."""

from __future__ import annotations

import os
import queue
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine.process.stage_process import _serve, _set_environment
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AddRequest, Command, StopStage
from omni_cli.stage.protocol import StageSpec


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


SEGMENTS = "expandable_segments:True"


def set_allocator(
    profile: str, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *keys: str, **variables: str
) -> dict[str, str]:
    """Return torch's settings of its memory in the process of a stage that a user starts with `variables`."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    environment = {name: value for name, value in os.environ.items() if name not in names} | variables
    monkeypatch.setattr(os, "environ", environment)
    config = next(each for each in load_profile(profile, keys).stages if each.name == stage)
    _set_environment(cast(StageSpec, SimpleNamespace(stage=config, mps_folder=None)), tmp_path)
    return {name: value for name, value in environment.items() if name in names}


@pytest.mark.parametrize(
    ("profile", "stage", "keys", "grows"),
    [
        ("qwen2.5-omni-7b", "token2wav", (), True),
        ("qwen3-omni-30b-a3b", "code2wav", (), True),
        ("tiny-image", "image", (), True),
        ("qwen2.5-omni-7b", "thinker", (), False),
        ("qwen2.5-omni-7b", "token2wav", ("token2wav.enable_sleep_mode=true",), False),
        ("tiny-image", "image", ("image.offload=model",), False),
        ("tiny-image", "image", ("image.devices=cuda:1",), False),
        ("qwen2.5-omni-7b", "token2wav", ('token2wav.devices="1"',), True),
    ],
)
def test_memory_of_a_diffusion_grows_unless_something_else_moves_it(
    profile: str,
    stage: str,
    keys: tuple[str, ...],
    grows: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    expected = {"PYTORCH_CUDA_ALLOC_CONF": SEGMENTS} if grows else {}
    assert set_allocator(profile, stage, monkeypatch, tmp_path, *keys) == expected


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_users_own_settings_of_memory_stay(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = {name: "max_split_size_mb:64"}
    assert set_allocator("qwen2.5-omni-7b", "token2wav", monkeypatch, tmp_path, **own) == own
