"""The thinking variant of Qwen3-Omni: only a thinker, which answers as transformers' does and cannot speak."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.in_process import run_here
from support.omni_requests import requests
from support.references import MAX_TOKENS, WAY

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.config.loader import load_profile
from omni_cli.models.qwen3_omni.reference import Qwen3OmniReference

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As published: no part of the talker, neither in the weights nor in the configuration."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(resolve_model("builtin:tiny-qwen3-omni"), folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if name.startswith("thinker.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["talker_config"], config["code2wav_config"]
    (folder / "config.json").write_text(json.dumps(config | {"enable_audio_output": False}))
    return folder


def test_the_thinking_variant_answers_as_transformers(thinking: Path, start_brief_engine: Any) -> None:
    derived = choose_profile(None, str(thinking), quiet=True)
    engine = start_brief_engine(derived, f"thinker.sampling.max_tokens={MAX_TOKENS}")
    config = load_profile(derived, overrides=(f"thinker.sampling.max_tokens={MAX_TOKENS}",))
    reference = Qwen3OmniReference(thinking, config, WAY)
    for request, result in zip(requests(), engine.run_all(requests()), strict=True):
        assert result.error is None and [trace.name for trace in result.stages] == ["thinker"]
        (text,) = result.outputs
        assert text.token_ids == reference.answer(request)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modalities", "audio"), "makes text, not `audio`"),
        (("-p", "tiny-qwen3-omni"), "has no stage `talker`: `enable_audio_output` is false in its config.json"),
    ],
)
def test_speech_of_the_thinking_variant_is_one_error(
    thinking: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = run_here(tmp_path, "generate", "--model", str(thinking), *arguments, "hello")
    assert ended.code == 2 and message in " ".join(ended.err.split()), ended.err
    assert not ended.leftovers and not ended.started_others
