"""Checkpoints of the Hugging Face hub, in its own cache, from where they load like any other folder."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import check_checkpoint
from omni_cli.errors import CheckpointError, OmniError


def download(repo_id: str) -> str:
    """Return the folder with a repo's files, downloading what the cache lacks. Raises `CheckpointError`."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise OmniError(f"a repo id needs huggingface_hub: {error}", hint="run `omni doctor`") from error
    try:
        folder = snapshot_download(repo_id)
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
    check_checkpoint(Path(folder))
    return folder
