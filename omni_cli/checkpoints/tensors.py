"""Read single tensors of a checkpoint without loading the model that they belong to."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from omni_cli.errors import CheckpointError


def open_tensor(model: str, name: str) -> torch.Tensor:
    """Memory-map the tensor called `name`, so that only pages that are read are loaded.

    `model` is a folder or a Hugging Face repo id. Raises `CheckpointError` if the tensor does not exist.
    """
    from safetensors import SafetensorError, safe_open

    path = _shard_of(model, name)
    try:
        with safe_open(path, framework="pt") as shard:
            return shard.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {name} from {path}: {error}") from error


def _shard_of(model: str, name: str) -> Path:
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

    index = cached_file(model, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    if index is None:
        return Path(cached_file(model, SAFE_WEIGHTS_NAME))
    weight_map = json.loads(Path(index).read_text())["weight_map"]
    if name not in weight_map:
        raise CheckpointError(f"{model} has no weight called {name}", hint="use a complete checkpoint")
    return Path(cached_file(model, weight_map[name]))
