"""A profile for a checkpoint, from its small files and the size of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.files import read_dtype, read_family, read_object
from omni_cli.errors import CheckpointError
from omni_cli.families import Machine, load

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_WEIGHTS = ("*.safetensors", "*.bin")
_MIN_LENGTH = 256
# vLLM reserves a block of the cache, and the last block of a request is usually not full.
_SPARE_TOKENS = 1024


def derive_profile(folder: Path, machine: Machine, model: str) -> dict[str, Any]:
    """Return the data of a profile for the checkpoint in `folder`; `model` is its value for the key `model`.

    Raises `CheckpointError` for a checkpoint that cannot be read or whose family has no default profile.
    """
    family = read_family(folder)
    if family.profile is None:
        raise CheckpointError(
            f"{family.title} has no default profile", hint="write one, and name it with `--profile PATH`"
        )
    try:
        dtype, stages = read_dtype(folder), load(family.profile)(folder, machine)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot derive a profile from the configuration in `{folder}`: {type(error).__name__}: {error}",
            hint="download or copy it again, or name a profile with `--profile`",
        ) from error
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.partition(":")[2] or model).name).lstrip("._-")[:100]
    return {
        "version": 1,
        "name": name or family.name,
        "description": f"{family.title}, derived from the checkpoint",
        "model": model,
        "dtype": dtype,
        "stages": stages,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Read the checkpoint's config.json."""
    return read_object(folder / "config.json")


def kv_cache(
    decoder: Mapping[str, Any], dtype: str, *, max_model_len: int, max_num_seqs: int, room_bytes: int
) -> dict[str, int]:
    """Return `max_model_len`, `max_num_seqs` and `kv_cache_memory_bytes` of a stage.

    They allow as many requests of full length as fit into `room_bytes`, or shorter ones if not even one fits. `decoder`
    is the part of a config.json that describes the language model. If the size of its cache is unknown, all of
    `room_bytes` is used.
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


def decoder_settings(
    decoder: Mapping[str, Any], dtype: str, machine: Machine, *, room_bytes: int, share: float
) -> dict[str, Any]:
    """Return settings of an AR stage that shares the machine: `share` of a device, `room_bytes` of a host."""
    is_cpu = machine.device == "cpu"
    limits = {"max_model_len": 4096 if is_cpu else 32768, "max_num_seqs": 8 if is_cpu else 32}
    sizes = kv_cache(decoder, dtype, **limits, room_bytes=room_bytes)
    return {
        **(sizes if is_cpu else {**limits, "gpu_memory_utilization": share}),
        "cudagraph_mode": "none" if is_cpu else "full_and_piecewise",
        "output_copy": "async",
    }


def _bytes_per_token(decoder: Mapping[str, Any], dtype: str) -> int | None:
    """Return the bytes of a token's keys and values in all layers of an ordinary transformer."""
    sizes = _sizes(decoder, "num_hidden_layers", "num_attention_heads", "hidden_size")
    if sizes is None:
        return None
    layers, heads, hidden = sizes
    head_dim = decoder.get("head_dim") or hidden // heads
    kv_heads = decoder.get("num_key_value_heads") or heads
    return 2 * layers * kv_heads * head_dim * ITEMSIZES[dtype] if isinstance(kv_heads, int) else None


def weights_bytes(folder: Path) -> int:
    """Return the size of the files with weights.

    Files that are not downloaded yet count with the size in their index, else with an estimate from the configuration.
    """
    index = folder / "model.safetensors.index.json"
    named = read_object(index).get("metadata", {}).get("total_size", 0) if index.is_file() else 0
    present = sum(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))
    return max(int(named), present) or _num_parameters(read_config(folder)) * ITEMSIZES[read_dtype(folder)]


def _num_parameters(config: Mapping[str, Any]) -> int:
    """Estimate the parameters of every ordinary transformer that the configuration, or a part of it, describes."""
    sizes = _sizes(config, "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    layers, hidden, inner, vocabulary = sizes or (0, 0, 0, 0)
    own = hidden * (layers * (4 * hidden + 3 * inner) + 2 * vocabulary)
    return own + sum(_num_parameters(part) for part in config.values() if isinstance(part, dict))


def _sizes(config: Mapping[str, Any], *keys: str) -> list[int] | None:
    """Return the values of these keys; None unless all are numbers, because some models have one per layer."""
    sizes = [config.get(key) for key in keys]
    numbers = [size for size in sizes if isinstance(size, int) and size]
    return numbers if len(numbers) == len(keys) else None
