"""A checkpoint that lacks a part: the error names it, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.checkpoints.derive import derive_profile
from omni_cli.checkpoints.files import check_checkpoint
from omni_cli.config.families import Machine
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.engine.checkpoint_fit import check_fit

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
FILES = ("model.safetensors", "tokenizer.json", "preprocessor_config.json")


def write_checkpoint(folder: Path, *files: str, **parts: Any) -> Path:
    config = {"architectures": ["SomeModelForConditionalGeneration"], "max_position_embeddings": 512, **parts}
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        content = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8) if name.endswith(".safetensors") else b"{}"
        (folder / name).write_bytes(content)
    return folder


def check(folder: Path) -> None:
    check_checkpoint(folder)
    profile = derive_profile(folder, Machine("cpu"), str(folder))
    check_fit(EngineConfig.model_validate(profile), folder)


@pytest.mark.parametrize("encoder", ["vision_config", "audio_config"])
def test_a_whole_one_fits(tmp_path: Path, encoder: str) -> None:
    check(write_checkpoint(tmp_path, *FILES, **{encoder: {"hidden_size": 8}}))


def test_a_model_of_text_needs_no_processor(tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path, *FILES[:2]))


@pytest.mark.parametrize(
    ("lacking", "part"),
    [
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer.json, which stage `model` needs"),
        ("preprocessor_config.json", "preprocessor_config.json, which stage `model` needs"),
    ],
)
def test_the_part_that_is_missing_is_named(tmp_path: Path, lacking: str, part: str) -> None:
    write_checkpoint(tmp_path, *(name for name in FILES if name != lacking), vision_config={"hidden_size": 8})
    with pytest.raises(CheckpointError, match=f"`{tmp_path}` has no {part}") as caught:
        check(tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.hint == "the folder is incomplete: download or copy it again"
