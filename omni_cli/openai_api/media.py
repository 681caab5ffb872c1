"""Media in requests: parts of a chat's message, and forms."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes, image_format: str) -> dict[str, object]:
    """Return an image file as a part of a chat message."""
    return {"type": "image_url", "image_url": {"url": data_url(f"image/{image_format}", data)}}


def sound_part(data: bytes, audio_format: str) -> dict[str, object]:
    """Return a sound file as a part of a chat message."""
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": audio_format},
    }


def sound_form(fields: Mapping[str, object], wav: bytes) -> aiohttp.FormData:
    """Return a form of fields, and a WAV file as its field `file`; it can be sent once."""
    from aiohttp import FormData

    form = FormData()
    for name, value in fields.items():
        form.add_field(name, value if isinstance(value, str) else json.dumps(value))
    form.add_field("file", wav, filename="sound.wav", content_type="audio/wav")
    return form
