"""The request fields that a checkpoint's pipeline takes."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.files import read_model_kind
from omni_cli.checkpoints.resolve import is_built, resolve_model
from omni_cli.diffusers_integration.signature import MEDIA_ARGUMENTS, signature_of
from omni_cli.errors import CheckpointError
from omni_cli.families import BUILTIN_PREFIX

_ANY = (*MEDIA_ARGUMENTS, "negative_prompt", "strength", "duration", "arg")


def fields_of(model: str) -> tuple[str, ...]:
    """Those of the pipeline's class; all where that is not known yet, and the pipeline itself will tell."""
    folder = resolve_model(model) if model.startswith(BUILTIN_PREFIX) and is_built(model) else model
    try:
        signature = signature_of(read_model_kind(folder)) if Path(folder).is_dir() else None
    except CheckpointError:
        return _ANY
    if signature is None:
        return _ANY
    media = [medium for medium in MEDIA_ARGUMENTS if signature.argument_for(medium) is not None]
    named = [name for name in ("negative_prompt", "strength") if name in signature.arguments]
    duration = ["duration"] if signature.duration_argument is not None else []
    return (*media, *named, *duration, "arg")
