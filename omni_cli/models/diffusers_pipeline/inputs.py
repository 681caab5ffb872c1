"""The request fields that a checkpoint's pipeline takes."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import read_model_kind
from omni_cli.diffusers_integration.signature import MEDIA_ARGUMENTS, PipelineSignature, signature_of
from omni_cli.errors import CheckpointError
from omni_cli.families import BUILTIN_PREFIX

_BUILT = {"tiny-audio": "StableAudioPipeline", "tiny-image": "QwenImagePipeline"}
_ANY = (*MEDIA_ARGUMENTS, "negative_prompt", "strength", "duration", "arg")


def fields_of(model: str) -> tuple[str, ...]:
    """Those of the pipeline's class; all where only a download tells it, and the pipeline itself will refuse."""
    signature = _signature(model)
    if signature is None:
        return _ANY
    media = [medium for medium in MEDIA_ARGUMENTS if signature.argument_for(medium) is not None]
    named = [name for name in ("negative_prompt", "strength") if name in signature.arguments]
    duration = ["duration"] if signature.duration_argument is not None else []
    return (*media, *named, *duration, "arg")


def needed_fields_of(model: str) -> tuple[str, ...]:
    """The media without which the pipeline cannot run; none where only a download tells it."""
    signature = _signature(model)
    return () if signature is None else signature.needed_media


def _signature(model: str) -> PipelineSignature | None:
    class_name = _BUILT.get(model.removeprefix(BUILTIN_PREFIX)) or _class_of(model)
    return None if class_name is None else signature_of(class_name)


def _class_of(model: str) -> str | None:
    """The class that a folder names; None for what is not a folder, or names none."""
    try:
        return read_model_kind(model) if Path(model).is_dir() else None
    except CheckpointError:
        return None
