"""Where vLLM looks for the weights of a checkpoint."""

from __future__ import annotations

import glob
import tempfile
from pathlib import Path

from omni_cli.checkpoints.files import read_header, weight_files


def shards_with_prefix(model: str, prefix: str) -> list[str] | None:
    """Return the file names of the safetensors shards that contain weights called `prefix...`.

    None if there are none (a repo id, another format), which means all files. A stage that reads only its shards loads
    faster.
    """
    files = weight_files(Path(model))
    # vLLM takes them for patterns.
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
