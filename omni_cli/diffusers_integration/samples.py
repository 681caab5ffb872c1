"""Audio of a pipeline: its sample rate, and the device-to-host copy of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_cli.diffusers_integration.pixels import BadOutputError
from omni_cli.errors import InputError
from omni_cli.inputs.pipeline_call import SOUND_FIELDS, PipelineCall

if TYPE_CHECKING:
    import torch

    from omni_cli.execution.copies import PendingCopy

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


def waveform_for(pipeline: Any, samples: np.ndarray, sample_rate: int, device: str) -> torch.Tensor:
    """Return a request's audio (num_samples,) or (num_samples, channels) as pipelines take it.

    That is (1, channels, num_samples) on `device`, at the pipeline's rate and in its VAE's type, with as many channels
    as that has. Raises `InputError` if the pipeline does not say its rate.
    """
    import soxr
    import torch

    target = get_sample_rate(pipeline)
    if target is None:
        raise InputError(f"{type(pipeline).__name__} does not say the sample rate of the audio that it takes")
    if target != sample_rate:
        samples = soxr.resample(samples, sample_rate, target)
    rows = samples.reshape(len(samples), -1).T
    channels = getattr(pipeline.vae.config, "audio_channels", len(rows))
    if len(rows) != channels:
        rows = rows.mean(axis=0, keepdims=True).repeat(channels, axis=0)
    return torch.from_numpy(rows.copy())[None].to(device, pipeline.vae.dtype)


@dataclass(frozen=True)
class PendingSamples:
    """Audio on the device whose samples are being copied to the host; `shape` is (N, num_samples) or
    (N, channels, num_samples).
    """

    copy: PendingCopy
    shape: tuple[int, ...]

    def ready(self) -> bool:
        return self.copy.ready()

    def get(self) -> np.ndarray:
        """Return float32 (N, num_samples), with several channels (N, num_samples, channels); waits for the copy.

        Raises `BadOutputError` for NaN or infinite values.
        """
        samples: np.ndarray = self.copy.get().numpy().reshape(self.shape)
        if not np.isfinite(samples).all():
            raise BadOutputError("the audio has NaN or infinite values")
        if samples.ndim == 2:
            return samples
        return samples[:, 0] if samples.shape[1] == 1 else np.ascontiguousarray(samples.swapaxes(1, 2))
