"""The call of a checkpoint's pipeline. Run where diffusers may be imported."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import MODULAR_INDEX, REPO_ID, index_file
from omni_cli.checkpoints.hub import cached_settings, download
from omni_cli.checkpoints.resolve import find_folder
from omni_cli.config.families import BUILTIN_PREFIX, published_needs
from omni_cli.core.errors import OmniError
from omni_cli.requests.pipeline_call import PipelineCall

_BUILT_PIPELINES = {
    "tiny-audio": "StableAudioPipeline",
    "tiny-edit": "Flux2KleinPipeline",
    "tiny-image": "QwenImagePipeline",
    "tiny-video": "WanPipeline",
}


def get_call(model: str) -> PipelineCall:
    """Return the call of the pipeline of a profile's `model`, without loading it; an unknown one without a folder.

    Raises `OmniError`.
    """
    try:
        from omni_cli.backends.diffusers.description import class_named, described_checkpoint, described_class
    except ImportError as error:
        raise OmniError(f"diffusers cannot be imported: {error}", hint="run `omni doctor`") from error
    name = _BUILT_PIPELINES.get(model.removeprefix(BUILTIN_PREFIX))
    folder = None if name is not None else _get_folder(model)
    if folder is not None:
        call = described_checkpoint(folder)
    else:
        name = name or _find_published(model)
        call = PipelineCall(None) if name is None else described_class(class_named(name))
    if call.pipeline is not None:
        call.check_runnable()
    return call


def _find_published(model: str) -> str | None:
    needs = published_needs(model)
    return None if needs is None else needs.pipeline


def _get_folder(model: str) -> Path | None:
    """Return the folder of a pipeline's configuration; None without one.

    That of a repository is downloaded if it is not in the cache and nothing else says its class.
    """
    if model.startswith(BUILTIN_PREFIX):
        return find_folder(model)
    folder: Path | None = Path(model).expanduser() if Path(model).expanduser().is_dir() else None
    if folder is None:
        folder = cached_settings(model, "model_index.json") or cached_settings(model, MODULAR_INDEX)
        if folder is None and _find_published(model) is None and REPO_ID.fullmatch(model):
            folder = download(model, settings_only=True)
    return None if folder is None or index_file(folder) is None else folder
