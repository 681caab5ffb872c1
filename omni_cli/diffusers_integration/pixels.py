"""Convert a VAE's output to uint8 RGB, byte-identical to diffusers' own `output_type="pil"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from omni_cli.execution.copies import PendingCopy

OutputType = Literal["pt", "pil"]


class BadOutputError(ValueError):
    """Invalid images or audio: values that are not numbers, or a wrong size."""


def output_type_for(pipeline: object) -> OutputType:
    """ "pt" if images come from diffusers' `VaeImageProcessor`, for which the bytes are known to be equal.

    Pipelines with an image processor that converts in its own way, or without one, keep their own conversion to PIL.
    """
    from diffusers.image_processor import VaeImageProcessor

    processor = getattr(pipeline, "image_processor", None)
    if not isinstance(processor, VaeImageProcessor):
        return "pil"
    steps = ("postprocess", "pt_to_numpy", "numpy_to_pil", "denormalize", "_denormalize_conditionally")
    inherited = all(getattr(type(processor), step) is getattr(VaeImageProcessor, step) for step in steps)
    return "pt" if inherited else "pil"


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """Convert (N, 3 or 1, H, W) floats in [0, 1] to flat uint8 pixels of (N, H, W, 3 or 1) on their device, a quarter
    of the bytes to copy.

    The same bytes as through diffusers' float32 numpy: float32 times 255, half to even, both exact in either. One more
    byte at the end is 1 if all values are numbers: checking here would make the host wait.
    """
    import torch

    pixels = images.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    return torch.cat([pixels.reshape(-1), torch.isfinite(images).all().to(torch.uint8).reshape(1)])


def from_bytes(flat: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Convert the output of `to_bytes` on the host to uint8 RGB images (N, H, W, 3); `shape` is that of the floats,
    (N, 3 or 1, H, W). Raises `BadOutputError` if a value was not a number.
    """
    array = flat.numpy()
    if not array[-1]:
        raise BadOutputError("the image has values that are not numbers (NaN or infinite)")
    count, channels, height, width = shape
    pixels = array[:-1].reshape(count, height, width, channels)
    return np.repeat(pixels, 3, axis=-1) if channels == 1 else pixels


def pil_to_uint8(images: list[Any]) -> np.ndarray:
    """Convert PIL images of one size to uint8 RGB (N, H, W, 3)."""
    return np.stack([np.asarray(image.convert("RGB")) for image in images])


@dataclass(frozen=True)
class PendingPixels:
    """Images on the device whose bytes are being copied to the host."""

    copy: PendingCopy
    shape: tuple[int, ...]

    def ready(self) -> bool:
        return self.copy.ready()

    def get(self) -> np.ndarray:
        """Return uint8 RGB (N, H, W, 3); waits for the copy. Raises `BadOutputError`."""
        return from_bytes(self.copy.get(), self.shape)


@dataclass(frozen=True)
class PixelsHere:
    """Images that the pipeline copied to the host itself."""

    pixels: np.ndarray

    def ready(self) -> bool:
        return True

    def get(self) -> np.ndarray:
        return self.pixels


Pixels = PendingPixels | PixelsHere
