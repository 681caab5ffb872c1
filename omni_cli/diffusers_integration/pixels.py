"""Convert a VAE's output to uint8 RGB, byte-identical to diffusers' own `output_type="pil"`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from omni_cli.execution.copies import PendingCopy

OutputType = Literal["pt", "pil"]


class BadOutputError(ValueError):
    """Invalid images or audio: NaN or infinite values, or none."""


def output_type_for(pipeline: object, makes: Literal["image", "video"]) -> OutputType:
    """ "pt" if the output comes from diffusers' image or video processor, for which the bytes are known to be equal.

    Pipelines with a processor that converts in its own way, or without one, keep their own conversion to PIL.
    """
    from diffusers.image_processor import VaeImageProcessor
    from diffusers.video_processor import VideoProcessor

    base: type = VideoProcessor if makes == "video" else VaeImageProcessor
    processor = getattr(pipeline, f"{makes}_processor", None)
    if not isinstance(processor, base):
        return "pil"
    steps = ["postprocess", "pt_to_numpy", "numpy_to_pil", "denormalize", "_denormalize_conditionally"]
    if makes == "video":
        steps.append("postprocess_video")
    inherited = all(getattr(type(processor), step) is getattr(base, step) for step in steps)
    return "pt" if inherited else "pil"


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """Convert (N, 1, 3 or 4, H, W) floats in [0, 1] to flat uint8 pixels of (N, H, W, 1, 3 or 4) on their device, a
    quarter of the bytes to copy.

    The same bytes as through diffusers' float32 numpy: float32 times 255, half to even, both exact in either. One more
    byte at the end is 1 if all values are finite: checking here would make the host wait.
    """
    import torch

    pixels = images.permute(0, 2, 3, 1).float().mul(255).round_().to(torch.uint8)
    # A sum is finite only if each term is, and takes a twentieth of the time of checking each.
    is_finite = torch.isfinite(images.sum(dtype=torch.float32))
    return torch.cat([pixels.reshape(-1), is_finite.to(torch.uint8).reshape(1)])


def from_bytes(flat: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Convert the output of `to_bytes` on the host to uint8 RGB or RGBA images (N, H, W, 3 or 4); `shape` is that of
    the floats, (N, 1, 3 or 4, H, W). Raises `BadOutputError` if a value was NaN or infinite.
    """
    array = flat.numpy()
    if not array[-1]:
        raise BadOutputError("the image has NaN or infinite values")
    count, channels, height, width = shape
    pixels = array[:-1].reshape(count, height, width, channels)
    return np.repeat(pixels, 3, axis=-1) if channels == 1 else pixels


def pil_to_uint8(images: Iterable[Any]) -> list[np.ndarray]:
    """Convert PIL images, in any nesting of lists, to uint8 RGB, or RGBA where they have transparency."""
    flat = [image for item in images for image in (item if isinstance(item, list | tuple) else [item])]
    if any(isinstance(image, list | tuple) for image in flat):
        return pil_to_uint8(flat)
    return [np.asarray(image.convert("RGBA" if image.mode in ("RGBA", "LA") else "RGB")) for image in flat]


def visualized(pipeline: Any, prediction: torch.Tensor) -> list[Any]:
    """Depth, normals or intrinsics (N, 1 or 3, H, W) as PIL images, in the colours of the pipeline's own processor."""
    processor, targets = pipeline.image_processor, getattr(pipeline, "target_properties", None)
    if targets:
        return [list(item.values()) for item in processor.visualize_intrinsics(prediction, targets)]
    show = processor.visualize_depth if prediction.shape[1] == 1 else processor.visualize_normals
    images: list[Any] = show(prediction)
    return images


@dataclass(frozen=True)
class PendingPixels:
    """Images on the device whose bytes are being copied to the host."""

    copy: PendingCopy
    shape: tuple[int, ...]

    def ready(self) -> bool:
        return self.copy.ready()

    def get(self) -> Sequence[np.ndarray]:
        """Return uint8 RGB or RGBA (N, H, W, 3 or 4); waits for the copy. Raises `BadOutputError`."""
        return list(from_bytes(self.copy.get(), self.shape))


@dataclass(frozen=True)
class PixelsHere:
    """Images that the pipeline copied to the host itself."""

    pixels: Sequence[np.ndarray]

    def ready(self) -> bool:
        return True

    def get(self) -> Sequence[np.ndarray]:
        return self.pixels


Pixels = PendingPixels | PixelsHere
