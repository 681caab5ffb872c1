"""A profile for a checkpoint, from its small files and the size of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.files import read_dtype, read_family, read_object
from omni_cli.errors import CheckpointError
from omni_cli.families import Machine, load

_ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_WEIGHTS = ("*.safetensors", "*.bin")
_MIN_LENGTH = 256
# vLLM keeps a block of the cache for itself, and fills up the last one of each request.
_SPARE_TOKENS = 1024


def derive_profile(folder: Path, machine: Machine, model: str) -> dict[str, Any]:
    """The data of a profile for the checkpoint in `folder`, as YAML would hold it; `model` is what the profile names.

    Raises `CheckpointError` for a checkpoint that cannot be read or whose family has no default profile.
    """
    family = read_family(folder)
    if family.profile is None:
        raise CheckpointError(
            f"{family.title} has no default profile", hint="write one, and name it with `--profile PATH`"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.partition(":")[2] or model).name).lstrip("._-")[:100]
    return {
        "version": 1,
        "name": name or family.name,
        "description": f"{family.title}, derived from the checkpoint",
        "model": model,
        "dtype": read_dtype(folder),
        "stages": load(family.profile)(folder, machine),
    }


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json."""
    return read_object(folder / "config.json")


def kv_cache(
    decoder: Mapping[str, Any], dtype: str, *, max_model_len: int, max_num_seqs: int, room_bytes: int
) -> dict[str, int]:
    """`max_model_len`, `max_num_seqs` and `kv_cache_memory_bytes` of a stage.

    For as many requests of full length as fit into `room_bytes`; where not even one fits, shorter ones. `decoder` is
    the part of a config.json that describes the language model; of one whose cache cannot be told from it, what there
    is room for.
    """
    max_model_len = min(max_model_len, int(decoder.get("max_position_embeddings") or max_model_len))
    token_bytes = _bytes_per_token(decoder, dtype)
    if token_bytes is None:
        return {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "kv_cache_memory_bytes": max(room_bytes, 1 << 26),
        }
    room = room_bytes // token_bytes - _SPARE_TOKENS
    length = min(max_model_len, max(_MIN_LENGTH, room // _MIN_LENGTH * _MIN_LENGTH))
    num_full = max(1, min(max_num_seqs, room // length))
    return {
        "max_model_len": length,
        "max_num_seqs": max_num_seqs,
        "kv_cache_memory_bytes": token_bytes * (length * num_full + _SPARE_TOKENS),
    }


def _bytes_per_token(decoder: Mapping[str, Any], dtype: str) -> int | None:
    """Of the keys and values of all layers of an ordinary transformer."""
    layers, heads = decoder.get("num_hidden_layers"), decoder.get("num_attention_heads")
    if not layers or not heads or not decoder.get("hidden_size"):
        return None
    head_dim = decoder.get("head_dim") or decoder["hidden_size"] // heads
    kv_heads = decoder.get("num_key_value_heads") or heads
    return int(2 * layers * kv_heads * head_dim * _ITEMSIZES[dtype])


def weights_bytes(folder: Path) -> int:
    """The size of the files with weights; what their index says of one that is not downloaded yet."""
    index = folder / "model.safetensors.index.json"
    named = read_object(index).get("metadata", {}).get("total_size", 0) if index.is_file() else 0
    return max(int(named), sum(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern)))
