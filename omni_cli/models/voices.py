"""Names of OpenAI's voices, which clients send to any server, as speakers of a model."""

from __future__ import annotations

from collections.abc import Sequence

_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip


def speaker_for(voice: str, speakers: Sequence[str]) -> str:
    """Return a speaker for one of OpenAI's voices, always the same one; any other name as it is."""
    if voice in speakers or voice.lower() not in _VOICES:
        return voice
    return speakers[_VOICES.index(voice.lower()) % len(speakers)]


def note_on_voice(voice: str | None, speaker: str) -> tuple[str, ...]:
    """Return a sentence if another speaker than the named voice speaks."""
    return (
        ()
        if voice is None or voice.lower() == speaker.lower()
        else (f"the voice `{voice}` is OpenAI's; this model's `{speaker}` speaks",)
    )
