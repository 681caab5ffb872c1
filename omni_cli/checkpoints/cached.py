"""The checkpoints in the caches of the hub and of built-in models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.checkpoints.build import cached_folder
from omni_cli.checkpoints.files import check_checkpoint, read_family
from omni_cli.checkpoints.hub import hub_cache_folder
from omni_cli.errors import CheckpointError, OutputError
from omni_cli.families import BUILTIN_PREFIX, builtins

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo


@dataclass(frozen=True)
class CachedModel:
    """A checkpoint in a cache. `derives_profile`: `--model` alone can run it."""

    name: str
    folder: Path
    size_bytes: int
    complete: bool
    derives_profile: bool


@dataclass(frozen=True)
class CachedRepo:
    """A repository in the hub's cache."""

    info: CachedRepoInfo
    cache: HFCacheInfo

    @property
    def size_bytes(self) -> int:
        return int(self.info.size_on_disk)

    def delete(self) -> None:
        """Delete all its revisions. Raises `OutputError`."""
        commits = [revision.commit_hash for revision in self.info.revisions]
        self.cache.delete_revisions(*commits).execute()
        if self.info.repo_path.exists():  # the library logs what it cannot delete
            raise OutputError(f"cannot delete `{self.info.repo_path}`", hint="check the permissions of the folder")


def find_cached(repo_id: str) -> CachedRepo:
    """Return a downloaded repository; raises `CheckpointError` if the cache has none of that name."""
    cache = _scan()
    for info in () if cache is None else cache.repos:
        if (info.repo_type, info.repo_id) == ("model", repo_id):
            assert cache is not None
            return CachedRepo(info, cache)
    raise CheckpointError(f"`{repo_id}` is not in the cache", hint="`omni models list` shows what is")


def list_cached() -> list[CachedModel]:
    """Return the downloaded repositories by name, then the built checkpoints."""
    cache = _scan()
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
