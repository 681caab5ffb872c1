"""The speakers of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.errors import InputError
from omni_cli.models.voices import speaker_for

# transformers' default, if the checkpoint has it.
_DEFAULT = "ethan"


def pick_speaker(speakers: Sequence[str], name: str | None) -> str:
    """Return the speaker of lower-case `speakers`. Raises `InputError` with the list."""
    if name is None:
        return _DEFAULT if _DEFAULT in speakers else speakers[0]
    speaker = speaker_for(name.lower(), speakers)
    if speaker not in speakers:
        raise InputError(f"unknown speaker `{name}`", hint=f"this model has {', '.join(speakers)}")
    return speaker
