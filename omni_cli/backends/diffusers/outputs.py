"""Outputs of a pipeline, copied to the host: images and frames as uint8 RGB, byte-identical to diffusers' own
`output_type="pil"`, and audio with its sample rate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from omni_cli.requests.pipeline_call import SOUND_FIELDS, PipelineCall

if TYPE_CHECKING:
    import torch

    from omni_cli.backends.execution.copies import OutputCopy, PendingCopy

OutputType = Literal["pt", "pil"]
_PIECE_BYTES = 16 * 2**20
# Attributes in which pipelines keep their sample rate, which is not in their output.
_LOCATIONS = (
    "sample_rate",
    "audio_sample_rate",
    "vocoder.config.output_sampling_rate",
    "vocoder.config.sampling_rate",
    "vae.config.sampling_rate",
    "vae.config.sample_rate",
    "sound_tokenizer.config.sampling_rate",
    # Last, because a vocoder may resample the output of an audio VAE.
    "audio_sampling_rate",
)


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


def visualize(pipeline: Any, prediction: torch.Tensor) -> list[Any]:
    """Depth, normals or intrinsics (N, 1 or 3, H, W) as PIL images, in the colours of the pipeline's own processor."""
    processor, targets = pipeline.image_processor, getattr(pipeline, "target_properties", None)
    if targets:
        return [list(item.values()) for item in processor.visualize_intrinsics(prediction, targets)]
    show = processor.visualize_depth if prediction.shape[1] == 1 else processor.visualize_normals
    images: list[Any] = show(prediction)
    return images


@dataclass(frozen=True)
class PendingCopies:
    """Images or audio that are being copied to the host, and `convert`, which makes arrays of their bytes there."""

    copy: PendingCopy
    convert: Callable[[torch.Tensor], np.ndarray]

    def get(self) -> np.ndarray:
        """Wait for the copy. Raises `BadOutputError` for NaN or infinite values."""
        return self.convert(self.copy.get())


class Frames:
    """A video as its pipeline made it.

    `frames` is a tensor (num_frames, 3 or 1, height, width) or an array (num_frames, height, width, 3 or 1) with values
    in [0, 1] (uint8 arrays: [0, 255]), or a list of PIL images.
    """

    def __init__(self, frames: Any, output_copy: OutputCopy) -> None:
        self._frames = frames
        self._output_copy = output_copy

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        frame: Any = self._frames[0]
        if hasattr(frame, "size") and isinstance(frame.size, tuple):
            width, height = frame.size
        else:
            height, width = frame.shape[:2] if isinstance(frame, np.ndarray) else frame.shape[1:]
        return int(width), int(height)

    def pieces(self) -> Iterator[Sequence[np.ndarray]]:
        """Yield some frames at a time, uint8 RGB (height, width, 3) each, the next ones being copied meanwhile.

        Raises `BadOutputError` for NaN or infinite values.
        """
        import torch

        frames = self._frames
        if isinstance(frames, np.ndarray) and frames.dtype != np.uint8:
            frames = torch.from_numpy(frames).permute(0, 3, 1, 2)
        if isinstance(frames, torch.Tensor):
            yield from self._copy_chunks(frames)
            return
        step = _frames_per_piece(np.asarray(frames[0]).size)
        for start in range(0, len(frames), step):
            piece = frames[start : start + step]
            yield list(piece) if isinstance(piece, np.ndarray) else pil_to_uint8(piece)

    def numpy(self) -> np.ndarray:
        """All frames, uint8 RGB (num_frames, height, width, 3)."""
        return np.stack(list(itertools.chain.from_iterable(self.pieces())))

    def _copy_chunks(self, frames: Any) -> Iterator[Sequence[np.ndarray]]:
        if frames.ndim != 4 or frames.shape[1] not in (1, 3):
            raise BadOutputError(f"the pipeline made a tensor of shape {tuple(frames.shape)} instead of RGB frames")
        under_way: PendingCopies | None = None
        for piece in frames.split(_frames_per_piece(3 * frames[0, 0].numel())):
            convert = functools.partial(from_bytes, shape=tuple(piece.shape))
            following = PendingCopies(self._output_copy.start(to_bytes(piece)), convert)
            if under_way is not None:
                yield list(under_way.get())
            under_way = following
        if under_way is not None:
            yield list(under_way.get())


def _frames_per_piece(frame_bytes: int) -> int:
    return max(1, _PIECE_BYTES // frame_bytes)


def get_sample_rate(pipeline: object) -> int | None:
    """Return the samples per second of the pipeline's audio; None if it does not say."""
    for location in _LOCATIONS:
        value: Any = pipeline
        for name in location.split("."):
            value = getattr(value, name, None)
        if isinstance(value, int | float) and value > 0:
            return int(value)
    return None


def makes_sound(pipeline: object, call: PipelineCall) -> bool:
    """Return True if the pipeline can make sound; one for videos may have been published without the part for it."""
    parts = {location.partition(".")[0] for location in _LOCATIONS if "." in location}
    lacks_part = any(getattr(pipeline, name, pipeline) is None for name in parts)
    return call.makes == "audio" or (not lacks_part and bool({*SOUND_FIELDS} & {*call.outputs}))


def to_samples(flat: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 (N, num_samples), with several channels (N, num_samples, channels); `shape` is that of the
    pipeline, (N, num_samples) or (N, channels, num_samples). Raises `BadOutputError` for NaN or infinite values.
    """
    samples: np.ndarray = flat.numpy().reshape(shape)
    if not np.isfinite(samples).all():
        raise BadOutputError("the audio has NaN or infinite values")
    if samples.ndim == 2:
        return samples
    return samples[:, 0] if samples.shape[1] == 1 else np.ascontiguousarray(samples.swapaxes(1, 2))


def first_field(output: object, fields: Sequence[str]) -> Any:
    """Return the first of these fields that a pipeline's output has; None if it has none."""
    return next((getattr(output, field) for field in fields if hasattr(output, field)), None)


def to_host(name: str, value: object) -> np.ndarray:
    """Return a tensor as an array; bfloat16, which NumPy lacks, as float32. Raises `BadOutputError`."""
    import torch

    if isinstance(value, torch.Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    if not isinstance(value, np.ndarray) or not value.ndim:
        raise BadOutputError(f"the pipeline made a {type(value).__name__} of `{name}` instead of a tensor")
    if not np.isfinite(value).all():
        raise BadOutputError(f"`{name}` has NaN or infinite values")
    return value


def with_batch_axis(videos: Any, sound: Any) -> tuple[Any, Any]:
    """Return videos and their sound with an axis for the batch, which pipelines leave out that make one at a time."""
    if videos[0].ndim == 4 if hasattr(videos[0], "ndim") else isinstance(videos[0], list | tuple):
        return videos, sound
    return [videos], None if sound is None else sound[None]
