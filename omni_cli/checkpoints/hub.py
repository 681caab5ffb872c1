"""Checkpoints of the Hugging Face hub, downloaded to its own cache."""

from __future__ import annotations

import os
from pathlib import Path

from omni_cli.checkpoints.files import check_checkpoint
from omni_cli.errors import CheckpointError, OmniError


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


def download(repo_id: str, *, settings_only: bool = False) -> Path:
    """Return the folder with a repo's files, downloading what the cache lacks. Raises `CheckpointError`.

    With `settings_only`, only its configuration files.
    """
    hub_cache_folder()  # fails without a home folder, where the library would create a folder named `~`
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise OmniError(f"a repo id needs huggingface_hub: {error}", hint="run `omni doctor`") from error
    disable_progress_bars()
    try:
        folder = Path(snapshot_download(repo_id, allow_patterns="*.json" if settings_only else None))
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"`{repo_id}` is not on the Hugging Face hub, or you have no access to it",
            hint="check the name; a gated or private model needs `hf auth login`",
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"`{repo_id}` is not in the cache, and the Hugging Face hub is unreachable",
            hint="check the network, or pass a folder with `--model DIR`",
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"cannot download `{repo_id}`: {reason}", hint="check the network and the disk"
        ) from error
    if not settings_only:
        check_checkpoint(folder)
    return folder
