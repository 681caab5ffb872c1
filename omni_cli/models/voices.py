"""Speakers of a model, with OpenAI's voices, which clients send to any server, and the text that it is to speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_cli.core.errors import InputError

if TYPE_CHECKING:
    from omni_cli.requests.outputs import GenerateRequest, Part

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
    if voice is None or voice.lower() == speaker.lower():
        return ()
    return (f"the voice `{voice}` is OpenAI's; this model's `{speaker}` speaks",)


# transformers' default for Qwen3-Omni, if the checkpoint has it.
_DEFAULT = "ethan"


def pick_speaker(speakers: Sequence[str], name: str | None, *, default: str | None = _DEFAULT) -> str:
    """Return one of `speakers`, without a name `default` or else the first. Raises `InputError` with the list."""
    if name is None:
        return default if default and default in speakers else speakers[0]
    speaker = name if name in speakers else speaker_for(name.lower(), speakers)
    if speaker not in speakers:
        raise InputError(f"unknown speaker `{name}`", hint=f"this model has {', '.join(speakers)}")
    return speaker


def text_to_speak(request: GenerateRequest) -> tuple[tuple[Part, ...], str]:
    """Return the system message of a request, which may tell how to speak, and the text, the only message beside it.

    Raises `InputError`.
    """
    messages = list(request.messages)
    how = messages.pop(0).parts if messages and messages[0].role == "system" else ()
    text = request.prompt or ""
    if request.text.reply is not None:
        text = request.text.reply
    elif messages:
        if [message.role for message in messages] != ["user"] or any(part.type != "text" for part in messages[0].parts):
            raise InputError("this model speaks one message of the role `user`, a text, after one of `system` at most")
        text = "".join(part.text for part in messages[0].parts)
    if not text.strip():
        raise InputError("the prompt is empty")
    return how, text
