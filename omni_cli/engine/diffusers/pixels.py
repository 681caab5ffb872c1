"""From what a pipeline's VAE decoded to uint8 RGB, byte for byte as diffusers' own `output_type="pil"`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

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


def to_uint8(images: Any) -> np.ndarray:
    """(N, 3 or 1, H, W) floats in [0, 1] to uint8 (N, H, W, 3), converted where they are, so a quarter
    travels.

    The same bytes as diffusers' own route over float32 numpy: float32 times 255, half to even, both exact in
    either. Raises `BadPixelsError` where a value is not a number.
    """
    import torch

    if not bool(torch.isfinite(images).all()):
        raise BadPixelsError("the picture has values that are not numbers (NaN or infinite)")
    pixels = images.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    array = pixels.contiguous().cpu().numpy()
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array


def pil_to_uint8(images: list[Any]) -> np.ndarray:
    """PIL pictures of one size to uint8 RGB (N, H, W, 3)."""
    return np.stack([np.asarray(image.convert("RGB")) for image in images])
