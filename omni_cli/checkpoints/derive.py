"""A profile for a checkpoint, from its small files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.architectures import check_known
from omni_cli.checkpoints.files import read_dtype, read_family, read_object
from omni_cli.config.families import Family, Machine, load, plugin_place
from omni_cli.core.errors import CheckpointError

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}
_WEIGHTS = ("*.safetensors", "*.bin")


def derive_profile(folder: Path, machine: Machine, model: str) -> dict[str, Any]:
    """Return the data of a profile for the checkpoint in `folder`; `model` is its value for the key `model`.

    Raises `CheckpointError` for a checkpoint that cannot be read or whose family has no default profile.
    """
    check_known(folder, trusts_code=True)
    family = read_family(folder)
    if family.profile is None:
        raise CheckpointError(
            f"{family.title} has no default profile", hint="write one, and name it with `--profile PATH`"
        )
    try:
        dtype, stages = read_dtype(folder), load(family.profile)(folder, machine)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        place = plugin_place(error)
        message = f"cannot derive a profile from the configuration in `{folder}`: {type(error).__name__}: {error}"
        hint = "correct the plug-in" if place else "download or copy it again"
        message += f" ({place})" if place else ""
        raise CheckpointError(message, hint=f"{hint}, or name a profile with `--profile`") from error
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.partition(":")[2] or model).name).lstrip("._-")[:100]
    return {
        "version": 1,
        "name": name or family.name,
        "description": f"{family.title}, derived from the checkpoint",
        "model": model,
        "dtype": dtype,
        "stages": {name: {**_place(family, name), **settings} for name, settings in stages.items()},
    }


def _place(family: Family, name: str) -> dict[str, str]:
    """Return the keys that give a stage its place in the chain."""
    role = family.role(name)
    if role is None:
        return {}
    place: dict[str, str] = {"kind": role.kind, "backend": role.backend}
    return place if role.input is None else {**place, "input": role.input}


def read_config(folder: Path) -> dict[str, Any]:
    """Read the checkpoint's config.json."""
    return read_object(folder / "config.json")


def decoder_settings(
    decoder: Mapping[str, Any],
    machine: Machine,
    *,
    max_model_len: Mapping[str, int],
    max_num_seqs: Mapping[str, int] = _MAX_NUM_SEQS,
) -> dict[str, Any]:
    """Return settings of an AR stage, with limits by the kind of device, and no longer requests than the model allows.

    `decoder` is the part of a config.json that describes the language model. The size of the KV cache is planned when
    the stage starts.
    """
    length = max_model_len[machine.device]
    return {
        "max_model_len": min(length, int(decoder.get("max_position_embeddings") or length)),
        "max_num_seqs": max_num_seqs[machine.device],
        "cudagraph_mode": "none" if machine.device == "cpu" else "full_and_piecewise",
        "output_copy": "async",
    }


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
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    sizes = [size for key in keys if isinstance(size := config.get(key), int) and size]
    # Some models have one per layer.
    layers, hidden, inner, vocabulary = sizes if len(sizes) == len(keys) else (0, 0, 0, 0)
    own = hidden * (layers * (4 * hidden + 3 * inner) + 2 * vocabulary)
    return own + sum(_num_parameters(part) for part in config.values() if isinstance(part, dict))
