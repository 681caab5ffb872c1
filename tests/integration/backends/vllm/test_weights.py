"""The files from which weights are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader

from omni_cli.backends.vllm.weights import WHOLE_STAGE

OTHERS = ("adapter_model.safetensors", "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_files_beside_the_weights_are_left_out_with_a_note(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM would load an adapter's tensors as the model's, and shards of an earlier save over it."""
    for name in (f"model.{suffix}", OTHERS[0], *(OTHERS[1:] if suffix == "safetensors" else ())):
        save_file({"weight": torch.ones(1)}, tmp_path / name)
    loader = get_model_loader(LoadConfig(load_format=WHOLE_STAGE))
    _, files, are_safetensors, _ = loader._prepare_weights(str(tmp_path), None, None, True, None)
    assert ([Path(file).name for file in files], are_safetensors) == ([f"model.{suffix}"], suffix == "safetensors")
    (note,) = caplog.messages
    assert note.endswith(", ".join(OTHERS if suffix == "safetensors" else OTHERS[:1]))
