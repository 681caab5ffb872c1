"""Locate a model's files: a built-in checkpoint, a folder, or a repository of the Hugging Face hub.

Imports neither torch nor transformers unless something has to be built.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from omni_cli.checkpoints.build import build_in_cache, cached_folder
from omni_cli.checkpoints.files import REPO_ID, check_checkpoint
from omni_cli.checkpoints.hub import download
from omni_cli.errors import CheckpointError
from omni_cli.families import BUILTIN_PREFIX, builtins


def find_folder(model: str) -> Path | None:
    """Return a checkpoint's folder; None for one that `resolve_model` has to build or download.

    Raises `CheckpointError` for a model that does not exist and for a folder that is not a complete checkpoint.
    """
    if model.startswith(BUILTIN_PREFIX):
        name = model.removeprefix(BUILTIN_PREFIX)
        if name not in builtins():
            raise CheckpointError(f"no such built-in model: `{name}`", hint=_did_you_mean(name))
        built = cached_folder(name)
        return built if built.is_dir() else None
    if not model.strip():
        raise CheckpointError("the model name is empty", hint=_choices())
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            check_checkpoint(folder)
            return folder
        exists = folder.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot read the model folder `{model}`: {error}") from error
    if exists:
        raise CheckpointError(f"`{model}` is a file; a model is a folder", hint=_choices())
    if not REPO_ID.fullmatch(model):
        raise CheckpointError(f"no such model folder: `{model}`", hint=_did_you_mean(model))
    return None


def resolve_model(model: str, *, settings_only: bool = False) -> str:
    """Return the folder of a checkpoint, after building or downloading it if necessary.

    With `settings_only`, the weights of a repository are not downloaded. Raises `CheckpointError`.
    """
    folder = find_folder(model)
    if folder is None and model.startswith(BUILTIN_PREFIX):
        folder = build_in_cache(model.removeprefix(BUILTIN_PREFIX))
    elif folder is None:
        folder = download(model, settings_only=settings_only)
    return str(folder)


def _choices() -> str:
    built = ", ".join(BUILTIN_PREFIX + name for name in builtins())
    return f"use a folder, a Hugging Face repository as `OWNER/NAME`, or one of {built}"


def _did_you_mean(text: str) -> str:
    near = difflib.get_close_matches(text, builtins(), n=1)
    return f"did you mean `{BUILTIN_PREFIX}{near[0]}`?" if near else _choices()
