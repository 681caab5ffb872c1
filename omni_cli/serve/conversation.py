"""A chat's messages as the engine's input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import Limits
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas.chat import AudioPart, ImagePart, Message, TextPart

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Conversation:
    """`audio` and `images` as in `GenerateRequest`."""

    prompt: str = ""
    audio: list[tuple[np.ndarray, int]] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)


def read_conversation(messages: list[Message], limits: Limits) -> Conversation:
    """Decode what the messages hold; for use in a thread. Raises `APIError` (400)."""
    if len(messages) != 1 or messages[0].role != "user":
        raise APIError(400, "only one message, of role `user`, is supported", param="messages")
    decoder = MediaDecoder(limits)
    conversation = Conversation()
    content = messages[0].content
    parts = [TextPart(type="text", text=content)] if isinstance(content, str) else content
    texts = []
    for number, part in enumerate(parts):
        param = f"messages[0].content[{number}]"
        match part:
            case TextPart():
                texts.append(part.text)
            case ImagePart():
                conversation.images.append(decoder.image(part.image_url.url, f"{param}.image_url.url"))
            case AudioPart():
                conversation.audio.append(decoder.audio(part.input_audio.data, f"{param}.input_audio.data"))
    conversation.prompt = "\n".join(texts)
    return conversation
