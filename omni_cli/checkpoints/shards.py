"""Load one part of a checkpoint that holds several models."""

from __future__ import annotations

import json
from pathlib import Path


def shards_with_prefix(model: str, prefix: str) -> list[str] | None:
    """Return the file names of the safetensors shards that contain weights called `prefix...`.

    None if they are unknown (a repo id, a single file), which means all of them. A stage that reads only its shards
    loads faster.
    """
    index = Path(model) / "model.safetensors.index.json"
    if not index.is_file():
        return None
    weight_map = json.loads(index.read_text())["weight_map"]
    return sorted({shard for name, shard in weight_map.items() if name.startswith(prefix)})
