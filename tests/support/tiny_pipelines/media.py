"""Images, videos and sounds that a pipeline is called with: smooth, since noise would drown in a VAE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32


def image(seed: int = 1, width: int = SIDE, height: int = SIDE) -> Image.Image:
    """A smooth RGB image."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def mask(width: int = SIDE, height: int = SIDE) -> Image.Image:
    """A white rectangle on black, off the middle."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[height // 4 : height * 3 // 4, width // 8 : width * 5 // 8] = 255
    return Image.fromarray(pixels)


# Arguments that most calls have.
PROMPT = {"prompt": "a red cat", "num_inference_steps": 2}
SIZE = {"height": SIDE, "width": SIDE}
IMAGE = {"image": image()}
MASK = {"mask_image": mask()}
CONTROL = {"control_image": image(2)}


def video(num_frames: int = 5, width: int = SIDE, height: int = SIDE, seed: int = 1) -> list[Image.Image]:
    """Frames that go from one smooth image to another."""
    first, last = image(seed, width, height), image(seed + 1, width, height)
    return [Image.blend(first, last, index / max(1, num_frames - 1)) for index in range(num_frames)]


def masks(num_frames: int = 5, width: int = SIDE, height: int = SIDE) -> list[Image.Image]:
    """The same mask for each frame."""
    return [mask(width, height)] * num_frames


def sound(seconds: float, sample_rate: int) -> Any:
    """A float32 tensor (2, num_samples): a tone per channel."""
    import torch

    time_s = np.arange(round(seconds * sample_rate)) / sample_rate
    tones = np.stack([0.5 * np.sin(2 * np.pi * 220 * time_s), 0.25 * np.sin(2 * np.pi * 330 * time_s)])
    return torch.from_numpy(tones.astype(np.float32))


def noise(*shape: int, seed: int = 7) -> Any:
    """A tensor of normally distributed numbers, such as latents and embeddings."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def is_medium(value: object) -> bool:
    """Return True if a call's argument holds images, frames or samples."""
    if isinstance(value, list | tuple):
        return bool(value) and is_medium(value[0])
    if isinstance(value, Mapping):
        return any(is_medium(item) for item in value.values())
    return isinstance(value, Image.Image | np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")
