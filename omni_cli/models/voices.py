"""Names of OpenAI's voices, which clients send to any server, as speakers of a model."""

from __future__ import annotations

from collections.abc import Sequence

_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip


def openai_voices(speakers: Sequence[str]) -> dict[str, str]:
    """Return the speaker of each of OpenAI's voices, without those that are a speaker's own name."""
    return {
        voice: speakers[number % len(speakers)]
        for number, voice in enumerate(_VOICES)
        if speakers and voice not in speakers
    }


def speaker_for(voice: str, speakers: Sequence[str]) -> str:
    """Return a speaker for one of OpenAI's voices, always the same one; any other name as it is."""
    return voice if voice in speakers else openai_voices(speakers).get(voice.lower(), voice)


def note_on_voice(voice: str | None, speaker: str) -> tuple[str, ...]:
    """Return a sentence if another speaker than the named voice speaks."""
    return (
        ()
        if voice is None or voice.lower() == speaker.lower()
        else (f"the voice `{voice}` is OpenAI's; this model's `{speaker}` speaks",)
    )
