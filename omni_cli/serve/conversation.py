"""Convert a chat's messages for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from omni_cli.outputs import Message, Part, Video
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas import chat

if TYPE_CHECKING:
    import numpy as np

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass
class Conversation:
    """`messages`, `audio`, `images`, `videos` and `notes` as in `GenerateRequest`."""

    messages: list[Message] = field(default_factory=list)
    audio: list[tuple[np.ndarray, int]] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def num_chars(self) -> int:
        return sum(len(part.text) for message in self.messages for part in message.parts)


def read_conversation(messages: list[chat.Message], decoder: MediaDecoder) -> Conversation:
    """Decode the content of the messages; for use in a thread if there is media. Raises `APIError` (400)."""
    conversation = Conversation()
    for number, message in enumerate(messages):
        parts = tuple(_parts(message, f"messages[{number}].content", decoder, conversation))
        conversation.messages.append(Message(_ROLES[message.role], parts))
    conversation.notes = tuple(decoder.notes)
    return conversation


def _parts(message: chat.Message, param: str, decoder: MediaDecoder, conversation: Conversation) -> Iterator[Part]:
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
                conversation.images.append(decoder.image(part.image_url.url, f"{param}[{number}].image_url.url"))
                yield Part("image")
            case chat.VideoPart():
                conversation.videos.append(decoder.video(part.video_url.url, f"{param}[{number}].video_url.url"))
                yield Part("video")
            case chat.AudioPart():
                conversation.audio.append(decoder.audio(part.input_audio.data, f"{param}[{number}].input_audio.data"))
                yield Part("audio")
