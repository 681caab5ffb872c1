"""CSM's speakers, which are numbers."""

from __future__ import annotations

from omni_cli.errors import InputError
from omni_cli.models.voices import speaker_for

# Of a conversation; a single text may have any number.
SPEAKERS = ("0", "1")


def pick_speaker(name: str | None) -> str:
    """Return the speaker, by default the first. Raises `InputError` for one that is not a number."""
    speaker = speaker_for(name or SPEAKERS[0], SPEAKERS)
    if not (speaker.isascii() and speaker.isdigit()):
        raise InputError(f"unknown speaker `{speaker}`", hint="this model's speakers are numbers, from 0 on")
    return speaker
