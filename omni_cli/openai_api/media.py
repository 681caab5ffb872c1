"""Media in requests: parts of a chat's message, and forms, also of the files that lines of requests name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.files import open_input

if TYPE_CHECKING:
    import aiohttp

_IMAGES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_SOUNDS = {".wav": "wav", ".mp3": "mp3", ".flac": "flac"}


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes, image_format: str) -> dict[str, object]:
    """Return an image file as a part of a chat message."""
    return {"type": "image_url", "image_url": {"url": data_url(f"image/{image_format}", data)}}


def sound_part(data: bytes, audio_format: str) -> dict[str, object]:
    """Return a sound file as a part of a chat message."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": audio_format}}


def sound_form(fields: Mapping[str, object], wav: bytes) -> aiohttp.FormData:
    """Return a form of fields, and a WAV file as its field `file`; it can be sent once."""
    from aiohttp import FormData

    form = FormData()
    for name, value in fields.items():
        form.add_field(name, value if isinstance(value, str) else json.dumps(value))
    form.add_field("file", wav, filename="sound.wav", content_type="audio/wav")
    return form


def read_wav(path: Path, update: Callable[[bytes], None]) -> tuple[bytes, float]:
    """Return a sound file as a WAV file of one channel, and its seconds; see `read_image`."""
    from omni_cli.requests.media.reading import MediaReader, in_memory

    content, _ = _read_media(path, "audio", _SOUNDS, update)
    with in_memory(content) as file:
        samples, rate = MediaReader(lambda _note: None).audio(file, str(path))
    return encode_wav(samples, rate), len(samples) / rate


def read_image(path: Path, update: Callable[[bytes], None]) -> dict[str, object]:
    """Return an image file as a part of a chat message; `update` gets its bytes. Raises `ValueError`, `InputError`."""
    return image_part(*_read_media(path, "image", _IMAGES, update))


def read_sound(path: Path, update: Callable[[bytes], None]) -> dict[str, object]:
    """Return a sound file like `read_image`."""
    return sound_part(*_read_media(path, "audio", _SOUNDS, update))


def _read_media(path: Path, key: str, formats: Mapping[str, str], update: Callable[[bytes], None]) -> tuple[bytes, str]:
    media_format = formats.get(path.suffix.lower())
    if media_format is None:
        raise ValueError(f"`{key}`: `{path}` is not one of {', '.join(formats)}")
    with open_input(path, f"{key} file") as file:
        content = file.read()
    update(content)
    return content, media_format
