"""Convert a chat's messages for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from omni_cli.outputs import Message, Part
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas import chat

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


def read_conversation(messages: list[chat.Message], decoder: MediaDecoder) -> dict[str, Any]:
    """Return `messages`, `audio`, `images`, `videos` and `notes` of a `GenerateRequest`.

    For use in a thread if there is media. Raises `APIError` (400).
    """
    media: dict[str, list[object]] = {"audio": [], "images": [], "videos": []}
    turns = [
        Message(_ROLES[message.role], tuple(_parts(message, f"messages[{number}].content", decoder, media)))
        for number, message in enumerate(messages)
    ]
    return {
        "messages": tuple(turns),
        **{name: tuple(items) for name, items in media.items()},
        "notes": tuple(decoder.notes),
    }


def _parts(message: chat.Message, param: str, decoder: MediaDecoder, media: dict[str, list[object]]) -> Iterator[Part]:
    content = message.content
    if content is None and isinstance(message, chat.AssistantMessage) and message.audio is not None:
        content = message.audio.transcript
    if not isinstance(content, list):
        yield Part("text", content or "")
        return
    for number, part in enumerate(content):
        match part:
            case chat.TextPart():
                yield Part("text", part.text)
            case chat.ImagePart():
                media["images"].append(decoder.image(part.image_url.url, f"{param}[{number}].image_url.url"))
                yield Part("image")
            case chat.VideoPart():
                media["videos"].append(decoder.video(part.video_url.url, f"{param}[{number}].video_url.url"))
                yield Part("video")
            case chat.AudioPart():
                media["audio"].append(decoder.audio(part.input_audio.data, f"{param}[{number}].input_audio.data"))
                yield Part("audio")
