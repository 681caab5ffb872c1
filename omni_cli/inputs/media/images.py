"""Decode images to RGB pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

MAX_IMAGE_PIXELS = 64 * 1024 * 1024


@dataclass(frozen=True)
class DecodedImage:
    """Pixels uint8 RGB (height, width, 3), or alpha (height, width); `notes` say what was changed or left out."""

    pixels: np.ndarray
    notes: tuple[str, ...] = ()


def decode_image(content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> DecodedImage:
    """Decode an image of at most `max_pixels`; `name` identifies it in messages."""
    from omni_cli.inputs import images

    notes: list[str] = []
    return DecodedImage(images.decode_image(content, name, notes.append, max_pixels), tuple(notes))


def decode_alpha(content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> DecodedImage:
    """Decode only an image's transparency: 0 is fully transparent."""
    from omni_cli.inputs import images

    notes: list[str] = []
    return DecodedImage(images.decode_alpha(content, name, notes.append, max_pixels), tuple(notes))
