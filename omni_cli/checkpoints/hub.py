"""Checkpoints of the Hugging Face hub, downloaded to its own cache."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from omni_cli.checkpoints.files import (
    WEIGHT_SUFFIXES,
    check_checkpoint,
    index_file,
    read_components,
    read_family,
    read_object,
    used_files,
)
from omni_cli.core.errors import CheckpointError, OmniError, OutputError

if TYPE_CHECKING:
    from huggingface_hub.utils.tqdm import tqdm


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock, which the system releases even if the process is killed.

    `on_wait` is called if another process holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


_OTHER_CACHE = "name a folder with space that you may write to: `export HF_HUB_CACHE=DIR`"
# Waits before a server that fails, or that cuts a connection hard, is asked again.
_RETRY_AFTER_S = (1, 2, 4)
# Progress, an interrupt and the position of a resumed download have this grain; the library's is 10 MiB.
_CHUNK_BYTES = 1 << 20
_BYTES_BAR = "huggingface_hub.snapshot_download"


def home_folder() -> Path:
    """Return the user's home folder, where caches are by default. Raises `OmniError` for a user without one."""
    try:
        return Path.home()
    except RuntimeError as error:
        hint = "name a folder for caches: `export XDG_CACHE_HOME=DIR`, or set HOME"
        raise OmniError("this user has no home folder for the caches of models", hint=hint) from error


def hub_cache_folder() -> Path:
    """Return the download folder of Hugging Face's libraries, from their environment variables in their order.

    Raises `OmniError` for a user without a home folder.
    """
    for name, below in (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")):
        if folder := os.environ.get(name):
            return Path(folder, below).expanduser()
    return home_folder() / ".cache/huggingface/hub"


def cached_settings(repo_id: str, file: str) -> Path | None:
    """Return the folder of a repo that was downloaded before and has `file`, else None. Uses no network."""
    if repo_id.count("/") != 1 or ":" in repo_id:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(repo_id, file)
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


@dataclass(frozen=True)
class Download:
    """A repository's files that a chain needs; `files` is None if the cache does not know its files, offline."""

    repo_id: str
    revision: str | None
    folder: Path
    files: tuple[str, ...] | None
    size_bytes: int
    missing_bytes: int


def plan_download(repo_id: str, revision: str | None = None) -> Download:
    """Download a repository's configuration, and return which of its files are needed. Raises `OmniError`."""
    with _known_errors(repo_id, revision):
        from huggingface_hub import constants, get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        folder = _fetch(repo_id, revision, "*.json")
        try:
            sizes = {file.path: file.size for file in get_cached_repo_tree(repo_id, revision=revision)}
        except CachedRepoTreeNotFoundError:
            return Download(repo_id, revision, folder, None, 0, 0)
    files = tuple(needed_files(folder, sizes))
    missing = sum(sizes[name] for name in files if not (folder / name).exists())
    if missing and constants.HF_HUB_OFFLINE:
        raise _not_cached(repo_id, offline=True)
    return Download(repo_id, revision, folder, files, sum(sizes[name] for name in files), missing)


def fetch(
    plan: Download,
    on_bytes: Callable[[float], None] = lambda num_bytes: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Download what is missing, and return the checkpoint's folder. Raises `OmniError`.

    `on_bytes` gets the number of new bytes, in any thread; an exception from it stops the download. `on_wait` is called
    if another process downloads the same repository.
    """
    if plan.files is not None and plan.missing_bytes == 0 and all((plan.folder / name).exists() for name in plan.files):
        check_checkpoint(plan.folder)
        return plan.folder
    with _known_errors(plan.repo_id, plan.revision):
        free = shutil.disk_usage(plan.folder).free
        if free < plan.missing_bytes:
            needs = f"`{plan.repo_id}` needs {plan.missing_bytes:,} bytes"
            raise OutputError(f"{needs}, and `{hub_cache_folder()}` has {free:,} bytes free", hint=_OTHER_CACHE)
        locks = hub_cache_folder() / ".locks" / f"models--{plan.repo_id.replace('/', '--')}"
        locks.mkdir(parents=True, exist_ok=True)
        with hold_lock(locks / "omni.lock", on_wait):
            folder = _fetch(plan.repo_id, plan.revision, plan.files, on_bytes)
    check_checkpoint(folder)
    return folder


def download(repo_id: str, *, settings_only: bool = False) -> Path:
    """Return the folder with a repo's files, downloading what the cache lacks. Raises `OmniError`.

    With `settings_only`, only its configuration files.
    """
    if settings_only:
        with _known_errors(repo_id, None):
            return _fetch(repo_id, None, "*.json")
    return fetch(plan_download(repo_id))


def _fetch(
    repo_id: str,
    revision: str | None,
    files: str | tuple[str, ...] | None,
    on_bytes: Callable[[float], None] = lambda num_bytes: None,
) -> Path:
    """Download files; a connection that ends early is resumed by huggingface_hub, other failures here."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
    patterns = list(files) if isinstance(files, tuple) else files
    for wait_s in (*_RETRY_AFTER_S, None):
        try:
            return Path(
                snapshot_download(repo_id, revision=revision, allow_patterns=patterns, tqdm_class=_bar(on_bytes))
            )
        except Exception as error:
            if wait_s is None or not _is_transient(error):
                raise
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _bar(on_bytes: Callable[[float], None]) -> type[tqdm]:
    """Return a class of progress bars that show nothing and report the bytes written."""
    from huggingface_hub.utils.tqdm import tqdm

    class SilentBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("name") == _BYTES_BAR
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._counts_bytes:
                on_bytes(n or 0)

    return SilentBar


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that caused an error; None if no answer did."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((int(response.status_code) for response in responses if response is not None), None)


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    cut = any(type(cause).__name__ in ("ReadError", "WriteError", "RemoteProtocolError") for cause in _causes(error))
    return cut or status == 429 or (status or 0) >= 500


@contextmanager
def _known_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn the errors of a download into ours."""
    hub_cache_folder()  # fails without a home folder, where the library would create a folder named `~`
    try:
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise OmniError(f"a repo id needs huggingface_hub: {error}", hint="run `omni doctor`") from error
    page = f"{constants.ENDPOINT}/{repo_id}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"`{repo_id}` is gated, and you have no access to it",
            hint=f"accept its conditions at {page}, then run `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"`{repo_id}` has no revision `{revision}`", hint=f"see {page}/tree/main") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"`{repo_id}` is not on the Hugging Face hub, or you have no access to it",
            hint="check the name; a gated or private model needs `hf auth login`",
        ) from error
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        status = _status(error)
        if status == 401:
            raise CheckpointError(
                "the Hugging Face hub rejects the token", hint="run `hf auth login`, or unset HF_TOKEN"
            ) from error
        if isinstance(error, errors.LocalEntryNotFoundError) and status is None:
            raise _not_cached(repo_id, offline=constants.HF_HUB_OFFLINE) from error
        raise _download_error(repo_id, error, status) from error


def _not_cached(repo_id: str, *, offline: bool) -> CheckpointError:
    if offline:
        hint = "unset HF_HUB_OFFLINE, or pass a folder with `--model DIR`"
        return CheckpointError(f"`{repo_id}` is not in the cache, or not all of it; HF_HUB_OFFLINE is set", hint=hint)
    return CheckpointError(
        f"`{repo_id}` is not in the cache, and the Hugging Face hub is unreachable",
        hint="check the network, or pass a folder with `--model DIR`",
    )


def _download_error(repo_id: str, error: Exception, status: int | None) -> OmniError:
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
            reason = os.strerror(number)
            return OutputError(f"cannot write to `{hub_cache_folder()}`: {reason}", hint=_OTHER_CACHE)
    if status is not None:
        reason = f"the Hugging Face hub answered with status {status}"
    else:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return CheckpointError(
        f"cannot download `{repo_id}`: {reason}",
        hint=f"check the network, then run `omni models pull {repo_id}`: it goes on with the files that are missing",
    )


# Weights of other frameworks, and what a model's page shows.
_UNUSED_TYPES = {
    *(".onnx", ".onnx_data", ".msgpack", ".h5", ".ot", ".tflite", ".gguf", ".ckpt", ".mlmodel", ".nemo"),
    *(".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".pdf"),
}


def needed_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Select the files of a repository that a chain loads; its JSON files are in `folder` already.

    Per folder one format (safetensors, if there is one) in one variant. Of a pipeline, only the components that its
    index names. Raises `CheckpointError` if the JSON files do not name a model class.
    """
    special = {name for role in read_family(folder).roles for group in role.needed_files for name in group}
    components = {part.folder.name for part in read_components(folder).values() if part.folder is not None}
    is_pipeline = index_file(folder) is not None
    by_folder: dict[str, list[Path]] = defaultdict(list)
    needed = []
    for name in names:
        path = PurePosixPath(name)
        top = path.parts[0] if len(path.parts) > 1 else ""
        if (
            path.suffix in _UNUSED_TYPES
            or path.name == ".gitattributes"
            or (is_pipeline and top and top not in components)
        ):
            continue
        if path.suffix in WEIGHT_SUFFIXES and name not in special:
            by_folder[str(path.parent)].append(Path(name))
        else:
            needed.append(name)
    for part, weights in by_folder.items():
        # Weights beside a pipeline's folders are the whole pipeline in one file, or in another format.
        if part != "." or not is_pipeline:
            needed += _select_weights(folder / part, weights, only_safetensors=part != "." and not is_pipeline)
    return sorted(needed)


def _select_weights(folder: Path, weights: list[Path], *, only_safetensors: bool) -> list[str]:
    """Return the weights that a loader takes of a folder with several formats and variants."""
    safetensors = [file for file in weights if file.suffix == ".safetensors"]
    files = used_files(safetensors if safetensors or only_safetensors else weights)
    files = [file for file in files if "." not in file.stem] or files  # without variants, such as `.fp16`
    index = folder / "model.safetensors.index.json"
    named = read_object(index).get("weight_map") if index.is_file() else None
    if isinstance(named, dict):
        files = [file for file in files if file.name in named.values()] or files
    return [file.as_posix() for file in files]
