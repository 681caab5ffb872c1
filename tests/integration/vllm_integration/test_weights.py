"""Which models have their weights read ahead; the reading itself needs a device (`tests/gpu`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader

from omni_cli.vllm_integration.weights import READ_AHEAD


@pytest.mark.parametrize(("rows", "ahead"), [(6, False), (8, True)])
def test_a_model_that_takes_a_part_of_the_checkpoint_has_none_of_it_read_ahead(tmp_path: Path, rows: int, ahead: bool):
    save_file({"thinker.weight": torch.ones(8, 1024), "talker.weight": torch.ones(1, 1024)}, tmp_path / "a.safetensors")
    loader = get_model_loader(LoadConfig(load_format=READ_AHEAD))
    loader._num_bytes = sum(parameter.nbytes for parameter in nn.Linear(1024, rows, bias=False).parameters())
    _, (file,), _ = loader._prepare_weights(str(tmp_path), None, None, True, None)
    assert (Path(file).name, loader._reads_ahead) == ("a.safetensors", ahead)
