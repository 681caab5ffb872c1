"""From what a pipeline's VAE decoded to uint8 RGB, byte for byte as diffusers' own `output_type="pil"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from omni_cli.execution.copies import PendingCopy

OutputType = Literal["pt", "pil"]


class BadPixelsError(ValueError):
    """Pictures that are none: values that are not numbers, or another size than asked for."""


def output_type_for(pipeline: Any) -> OutputType:
    """ "pt" where the pictures are those of diffusers' `VaeImageProcessor`, which is where the bytes are known
    equal.

    Pipelines with an image processor that converts in its own way, or with none, keep their own conversion to
    PIL.
    """
    from diffusers.image_processor import VaeImageProcessor

    processor = getattr(pipeline, "image_processor", None)
    if not isinstance(processor, VaeImageProcessor):
        return "pil"
    steps = ("postprocess", "pt_to_numpy", "numpy_to_pil", "denormalize", "_denormalize_conditionally")
    inherited = all(getattr(type(processor), step) is getattr(VaeImageProcessor, step) for step in steps)
    return "pt" if inherited else "pil"


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """(N, 3 or 1, H, W) floats in [0, 1] to flat uint8 pixels of (N, H, W, 3 or 1), converted where they are, so a
    quarter travels.

    The same bytes as diffusers' own route over float32 numpy: float32 times 255, half to even, both exact in
    either. One more byte at the end is 1 if all values are numbers: asking here would make the host wait.
    """
    import torch

    pixels = images.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    return torch.cat([pixels.reshape(-1), torch.isfinite(images).all().to(torch.uint8).reshape(1)])


def from_bytes(flat: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Pictures uint8 RGB (N, H, W, 3) of `to_bytes` on the host, where `shape` is that of the (N, 3 or 1, H, W)
    floats; raises `BadPixelsError` where a value was not a number.
    """
    array = flat.numpy()
    if not array[-1]:
        raise BadPixelsError("the picture has values that are not numbers (NaN or infinite)")
    count, channels, height, width = shape
    pixels = array[:-1].reshape(count, height, width, channels)
    return np.repeat(pixels, 3, axis=-1) if channels == 1 else pixels


def pil_to_uint8(images: list[Any]) -> np.ndarray:
    """PIL pictures of one size to uint8 RGB (N, H, W, 3)."""
    return np.stack([np.asarray(image.convert("RGB")) for image in images])


@dataclass(frozen=True)
class PixelsOnTheWay:
    """Pictures on the device whose bytes travel to the host."""

    copy: PendingCopy
    shape: tuple[int, ...]

    def ready(self) -> bool:
        return self.copy.ready()

    def get(self) -> np.ndarray:
        """uint8 RGB (N, H, W, 3); waits for the copy. Raises `BadPixelsError`."""
        return from_bytes(self.copy.get(), self.shape)


@dataclass(frozen=True)
class PixelsHere:
    """Pictures that a pipeline has brought to the host itself."""

    pixels: np.ndarray

    def ready(self) -> bool:
        return True

    def get(self) -> np.ndarray:
        return self.pixels


Pixels = PixelsOnTheWay | PixelsHere
