"""Load one part of a checkpoint that holds several models."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import read_header, weight_files


def shards_with_prefix(model: str, prefix: str) -> list[str] | None:
    """Return the file names of the safetensors shards that contain weights called `prefix...`.

    None if there are none (a repo id, another format), which means all files. A stage that reads only its shards loads
    faster.
    """
    files = weight_files(Path(model))
    return [file.name for file in files if any(name.startswith(prefix) for name in read_header(file))] or None
