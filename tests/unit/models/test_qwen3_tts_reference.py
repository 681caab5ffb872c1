"""The call of Qwen3-TTS's publisher's package has what the stage reads of a profile and a request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.models.qwen3_tts.reference import Qwen3TTSReference
from omni_cli.models.scores import Way
from omni_cli.requests.outputs import GenerateRequest, Message, Part


@pytest.mark.parametrize(
    ("how", "expected"), [(None, "A low voice."), ("A high voice.", "A high voice.")], ids=["profile", "request"]
)
def test_the_profiles_instruction_counts_where_a_request_has_none(
    how: str | None, expected: str, tmp_path: Path
) -> None:
    own = {"tts_model_type": "voice_design", "talker_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    config = load_profile("tiny-qwen3-tts", ['talker.system_prompt="A low voice."'])
    python = shutil.which("true")
    assert python is not None
    reference = Qwen3TTSReference(tmp_path, config, Way("float32"), python)
    system = () if how is None else (Message("system", (Part("text", how),)),)
    request = GenerateRequest("0", messages=(*system, Message("user", (Part("text", "Hello."),))))
    call = reference._call(request)
    assert (call["instruct"], call["text"], call["language"]) == (expected, "Hello.", "auto")
