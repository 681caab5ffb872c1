"""A checkpoint with a pickle that would run code is an error, and the code does not run, whoever loads it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.omni_process import run_omni

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

import torch  # noqa: E402
from support.tiny_models import llama  # noqa: E402

from omni_cli.backends.diffusers.loading import load_pipeline  # noqa: E402
from omni_cli.checkpoints.resolve import resolve_model  # noqa: E402
from omni_cli.config.schema import DiffusionStageConfig  # noqa: E402
from omni_cli.core.errors import CheckpointError  # noqa: E402
from omni_cli.models.qwen2_5_omni.connectors import load_speakers  # noqa: E402


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._folder),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The folder that the payload of `poisoned` makes."""
    return tmp_path / "mark"


def poison(file: Path, mark: Path) -> None:
    """Write a file of torch with a payload, in place of safetensors files beside it."""
    for safe in file.parent.glob("*.safetensors*"):
        safe.unlink()
    torch.save({"weight": torch.zeros(2), "other": Payload(mark)}, file)


def test_the_payload_runs_where_nothing_holds_it(tmp_path: Path, mark: Path) -> None:
    poison(tmp_path / "weights.bin", mark)
    torch.load(tmp_path / "weights.bin", weights_only=False)
    assert mark.is_dir()


@pytest.mark.parametrize("file", ["transformer/diffusion_pytorch_model.bin", "text_encoder/pytorch_model.bin"])
def test_a_pipeline_of_diffusers_and_transformers_models(file: str, tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(resolve_model("builtin:tiny-image"), folder)
    poison(folder / file, mark)
    with pytest.raises(CheckpointError, match="cannot load a pipeline"):
        load_pipeline(str(folder), "float32", DiffusionStageConfig.create("image"))
    assert not mark.exists()


def test_speakers(tmp_path: Path, mark: Path) -> None:
    poison(tmp_path / "spk_dict.pt", mark)
    with pytest.raises(CheckpointError, match="cannot read the speaker file"):
        load_speakers(str(tmp_path))
    assert not mark.exists()


def test_a_model_of_vllm(tmp_path: Path, mark: Path) -> None:
    """Start the real engine, whose loader it is."""
    folder = llama(tmp_path / "model")
    poison(folder / "pytorch_model.bin", mark)
    ended = run_omni(tmp_path, "generate", "hi", "--model", str(folder), "--quiet")
    assert ended.code == 6
    assert "a pickled object that is not a tensor, which could run code" in ended.err
    assert "weights_only" not in ended.err
    assert not mark.exists()
