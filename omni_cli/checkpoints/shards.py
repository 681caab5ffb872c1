"""Weights in the files of a checkpoint: which shards to read, one of them, and those that the checkpoint lacks."""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.checkpoints.files import (
    read_header,
    read_model_kind,
    read_object,
    used_files,
    weight_files,
    weight_shapes,
)
from omni_cli.core.errors import CheckpointError

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


_NUM_NAMED = 3
# The number of a layer in a weight's name, and not that of a module in a sequence.
_LAYER = re.compile(r"\d+(?=\.[^.]+\.)")


def lacking(folder: str | Path, names: Sequence[str], *, finder: str | None = None) -> CheckpointError:
    """Return the error of a checkpoint without these weights, or of a `finder` that has these names for them."""
    first = ", ".join(names[:_NUM_NAMED]) + (", ..." if len(names) > _NUM_NAMED else "")
    message = f"`{folder}` lacks {len(names)} of its weights"
    if finder is not None:
        message = f"{finder} finds no weights in `{folder}` for {len(names)} of its parameters"
    return CheckpointError(
        f"{message}: {first}", hint="get the checkpoint again, or save it again with `save_pretrained`"
    )


def find_fault(folder: Path, aliases: Iterable[str], prefix: str, *, is_loaded: bool) -> CheckpointError | None:
    """Compare the weights in `folder` whose names begin with `prefix` with those that transformers would save.

    `aliases` are other names of the checkpoint's class. A model that `is_loaded` has all its weights; only shapes are
    compared then, and only if they differ between layers, because vLLM takes the first rows of a matrix that has too
    many. Returns None if there is no fault, and for checkpoints that transformers would save in another way: of classes
    that transformers lacks, quantized, or of an older version.
    """
    shapes = weight_shapes(folder) or ({} if is_loaded else _pickled_shapes(folder))
    saved = {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
    kinds = {(_LAYER.sub("N", name), shape) for name, shape in saved.items()}
    if is_loaded and len(kinds) == len(dict(kinds)):
        return None
    expected = _expected_shapes(folder, (read_model_kind(folder), *aliases))
    missing = [name for name in expected if name.startswith(prefix) and name not in saved]
    if saved and not is_loaded and len(missing) > len(saved.keys() - expected.keys()):
        return lacking(folder, missing)  # they are not there under other names
    for name, shape in saved.items():
        if expected.get(name, shape) != shape:
            return of_another_model(folder, name, shape, expected[name])
    return None


def of_another_model(folder: Path, name: str, shape: Sequence[int], expected: Sequence[int]) -> CheckpointError:
    """Return the error of a checkpoint with a weight of another shape."""
    return CheckpointError(
        f"`{folder}` has weights of another model: {name} has the shape {_text(shape)} instead of {_text(expected)}",
        hint="config.json and weights must be of the same checkpoint: get it again",
    )


def _pickled_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    import torch

    files = used_files(folder.glob("pytorch_model*.bin"))
    states = [torch.load(file, map_location="meta", weights_only=True) for file in files]
    return {name: tuple(tensor.shape) for state in states for name, tensor in state.items()}


def _expected_shapes(folder: Path, architectures: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights that transformers would save for the configuration in `folder`."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    kind: Any = next(filter(None, (getattr(transformers, name, None) for name in architectures)), None)
    if kind is None or "quantization_config" in read_object(folder / "config.json"):
        return {}
    try:
        with torch.device("meta"):
            model = kind._from_config(kind.config_class.from_pretrained(folder))
        optional = [*map(re.escape, model.all_tied_weights_keys), *(model._keys_to_ignore_on_load_missing or ())]
        state = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if not any(re.search(pattern, name) for pattern in optional)
        }
        return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}
    except Exception:  # noqa: BLE001 - a configuration that vLLM reads and transformers does not; vLLM's names will do
        return {}


def _text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"
