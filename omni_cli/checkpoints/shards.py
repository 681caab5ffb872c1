"""Single weights of a checkpoint, and the files in which vLLM looks for a stage's weights."""

from __future__ import annotations

import glob
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.checkpoints.files import read_header, weight_files
from omni_cli.errors import CheckpointError

if TYPE_CHECKING:
    import torch


def shards_with_prefix(model: str, prefix: str) -> list[str] | None:
    """Return the file names of the safetensors shards that contain weights called `prefix...`.

    None, which means all files, if there are none, as in another format. A stage that reads only its shards loads
    faster.
    """
    files = weight_files(Path(model))
    # vLLM reads the names as patterns.
    return [
        glob.escape(file.name) for file in files if any(name.startswith(prefix) for name in read_header(file))
    ] or None


def folder_for_vllm(model: str) -> str:
    """Return the checkpoint's path, or a link to it where vLLM would take the path for a pattern: `models [new]`."""
    if not glob.has_magic(model):
        return model
    link = Path(tempfile.mkdtemp(prefix="model-"), "checkpoint")
    link.symlink_to(Path(model).absolute())
    return str(link)


def open_tensor(model: str, name: str) -> torch.Tensor:
    """Memory-map the weight called `name`, so that only pages that are read are loaded. Raises `CheckpointError`."""
    from safetensors import SafetensorError, safe_open

    shard = next((file for file in weight_files(Path(model)) if name in read_header(file)), None)
    if shard is None:
        raise CheckpointError(f"`{model}` has no weight called {name}", hint="use a complete checkpoint")
    try:
        with safe_open(shard, framework="pt") as weights:
            return weights.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {name} from `{shard}`: {error}") from error
