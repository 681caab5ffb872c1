"""Files of images, audio, video and tensors: damaged ones, which are decoded or refused."""

from __future__ import annotations

import functools
import io
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from fuzz.documents import damage
from fuzz.profiles import scratch
from omni_cli.core.errors import InputError
from omni_cli.requests.files import load_tensor
from omni_cli.requests.media.reading import load_audio, load_image, load_sound, load_video
from omni_cli.requests.outputs import AudioOutput
from omni_cli.requests.video_encoding import encode_video

READERS: Mapping[str, Callable[[Path], object]] = {
    "image": lambda path: load_image(path, _no_warning),
    "audio": lambda path: load_audio(path, _no_warning, mono=False),
    "video": lambda path: load_video(path, _no_warning, None),
    "sound of a video": lambda path: load_sound(path, _no_warning),
    "tensor": load_tensor,
}


def _no_warning(_note: str) -> None:
    """Whatever a damaged file is noted for."""


@dataclass(frozen=True)
class Case:
    kind: str
    content: bytes


def cases(rng: random.Random) -> Iterator[Case]:
    """Damaged bytes, numbers of a header, and the bytes of another kind."""
    samples = _samples()
    while True:
        kind = rng.choice([*READERS])
        content = rng.choice(samples[kind if rng.random() < 0.95 else rng.choice([*READERS])])
        for _ in range(rng.choice((0, 1, 1, 2, 8))):
            content = damage(rng, content) if rng.random() < 0.5 else _with_number(rng, content)
        yield Case(kind, content or b"\0")


def check(case: Case) -> str:
    """Raises unless the file is read, or refused with one message."""
    path = scratch()
    path.write_bytes(case.content)
    try:
        READERS[case.kind](path)
    except InputError as error:
        assert error.message and "\n" not in error.message and len(error.message) < 1000, error.message
        return "rejected"
    return "accepted"


def _with_number(rng: random.Random, content: bytes) -> bytes:
    """An extreme number somewhere, most often in the header."""
    place = rng.randrange(min(len(content), rng.choice((64, 512, 2**30))) or 1)
    number = rng.choice((0, 1, 2**15, 2**31 - 1, 2**32 - 1))
    return content[:place] + struct.pack(rng.choice("<>") + "I", number) + content[place + 4 :]


@functools.cache
def _samples() -> dict[str, list[bytes]]:
    noise = np.random.default_rng(0)
    frames = noise.integers(0, 255, (6, 32, 32, 3), np.uint8)
    tone = np.sin(np.arange(4000) * 0.1).astype(np.float32)
    videos = [
        encode_video(iter([list(frames)]), len(frames), Fraction(24), sound).content
        for sound in (None, AudioOutput(np.stack([tone, tone], axis=1), 16000))
    ]
    arrays = (noise.random((3, 4), np.float32), np.arange(5), np.array(1.5))
    return {
        "image": [_image(frames[0], name) for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")],
        "audio": [_audio(tone, name) for name in ("WAV", "FLAC", "OGG", "MP3")],
        "video": videos,
        "sound of a video": videos,
        "tensor": [_tensor(array) for array in arrays],
    }


def _image(pixels: np.ndarray, name: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, name)
    return file.getvalue()


def _audio(samples: np.ndarray, name: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format=name)
    return file.getvalue()


def _tensor(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
