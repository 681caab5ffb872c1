"""Files of images and sounds that lines of requests name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from omni_cli.openai_api.media import image_part, sound_part
from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.files import open_input

_IMAGES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_SOUNDS = {".wav": "wav", ".mp3": "mp3", ".flac": "flac"}


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
