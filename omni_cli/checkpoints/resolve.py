"""Locate a model's files: a built-in checkpoint, a folder, or a repository of the Hugging Face hub; list the caches.

Imports neither torch nor transformers unless something has to be built.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.checkpoints.build import build_in_cache, cached_folder
from omni_cli.checkpoints.files import REPO_ID, check_checkpoint, read_family
from omni_cli.checkpoints.hub import download, hub_cache_folder
from omni_cli.config.families import BUILTIN_PREFIX, builtins, hint_at_plugins
from omni_cli.core.errors import CheckpointError, OutputError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo


def find_folder(model: str) -> Path | None:
    """Return a checkpoint's folder; None for one that `resolve_model` has to build or download.

    Raises `CheckpointError` for a model that does not exist and for a folder that is not a complete checkpoint.
    """
    if model.startswith(BUILTIN_PREFIX):
        name = model.removeprefix(BUILTIN_PREFIX)
        if name not in builtins():
            raise CheckpointError(f"no such built-in model: `{name}`", hint=hint_at_plugins(_did_you_mean(name)))
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


@dataclass(frozen=True)
class CachedModel:
    """A checkpoint in a cache. `derives_profile`: `--model` alone can run it."""

    name: str
    folder: Path
    size_bytes: int
    complete: bool
    derives_profile: bool


def find_cached(repo_id: str) -> tuple[CachedRepoInfo, HFCacheInfo]:
    """Return a downloaded repository and its cache; raises `CheckpointError` if that has none of the name."""
    cache = _scan()
    for info in () if cache is None else cache.repos:
        if (info.repo_type, info.repo_id) == ("model", repo_id):
            assert cache is not None
            return info, cache
    raise CheckpointError(f"`{repo_id}` is not in the cache", hint="`omni models list` shows what is")


def delete_cached(info: CachedRepoInfo, cache: HFCacheInfo) -> None:
    """Delete all revisions of a repository. Raises `OutputError`."""
    cache.delete_revisions(*(revision.commit_hash for revision in info.revisions)).execute()
    if info.repo_path.exists():  # the library logs what it cannot delete
        raise OutputError(f"cannot delete `{info.repo_path}`", hint="check the permissions of the folder")


def list_cached() -> list[CachedModel]:
    """Return the downloaded repositories by name, then the built checkpoints."""
    is_empty = next(hub_cache_folder().glob("models--*"), None) is None  # without the library's imports
    cache = None if is_empty else _scan()
    models = []
    for info in sorted(() if cache is None else cache.repos, key=lambda info: info.repo_id):
        if info.repo_type == "model" and info.revisions:
            main = info.refs.get("main") or max(info.revisions, key=lambda revision: revision.last_modified)
            models.append(_model(info.repo_id, main.snapshot_path, info.size_on_disk))
    for name in builtins():
        folder = cached_folder(name)
        if folder.is_dir():
            num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            models.append(_model(BUILTIN_PREFIX + name, folder, num_bytes))
    return models


def _model(name: str, folder: Path, size_bytes: int) -> CachedModel:
    try:
        check_checkpoint(folder)
        return CachedModel(name, folder, size_bytes, True, read_family(folder).profile is not None)
    except CheckpointError:
        return CachedModel(name, folder, size_bytes, False, False)


def _scan() -> HFCacheInfo | None:
    """Read the hub's cache; None if nothing was ever downloaded."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(hub_cache_folder())
    except CacheNotFound:
        return None
