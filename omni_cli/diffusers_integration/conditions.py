"""The arguments of a pipeline's call that hold media and files."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_cli.contents import CallFile, changed_items, get_items
from omni_cli.diffusers_integration.arguments import with_instances
from omni_cli.diffusers_integration.outputs import get_sample_rate
from omni_cli.errors import InputError
from omni_cli.inputs.pipeline_call import Medium, PipelineCall
from omni_cli.outputs import GenerateRequest

if TYPE_CHECKING:
    import torch


def get_conditions(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    """Return a request's media and files as arguments of the call, tensors on `device`."""
    files = {**_media_arguments(request, call, pipeline, device), **_call_files(request, call, pipeline, device)}
    return with_instances(files, call)


def get_media(request: GenerateRequest) -> dict[Medium, list[object]]:
    """Return the request's images and videos as Pillow images."""
    from PIL import Image

    images: dict[Medium, tuple[np.ndarray, ...]] = {"image": request.images, "control_image": request.control_images}
    media: dict[Medium, list[object]] = {
        medium: [Image.fromarray(array) for array in arrays] for medium, arrays in images.items() if arrays
    }
    if request.videos:
        media["video"] = [[Image.fromarray(frame) for frame in video.frames] for video in request.videos]
    if request.mask is not None:
        media["mask"] = [Image.fromarray(request.mask).convert("L")]
    return media


def _waveform(pipeline: Any, samples: np.ndarray, sample_rate: int, device: str) -> torch.Tensor:
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


def _media_arguments(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    media = get_media(request)
    if not request.audio:
        return call.media_arguments(media)
    media["audio"] = [_waveform(pipeline, samples, rate, device) for samples, rate in request.audio]
    rate = {"initial_audio_sampling_rate": get_sample_rate(pipeline)}
    return {**call.media_arguments(media), **{name: rate[name] for name in rate if name in call.arguments}}


def _call_files(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    """Return values with files: Pillow images, also for frames, tensors on the device, and references."""
    arguments: dict[str, object] = {}
    for name, value in request.call_files.items():
        argument = call.check_name(name)
        if argument.file_kind == "media":
            arguments[name] = [pipeline.reference(name, file) for file in get_items(value)]
            continue
        read = changed_items(value, functools.partial(_file_value, device))
        arguments[name] = call.checked(name, read)
    return arguments


def _file_value(device: str, file: CallFile) -> object:
    if file.kind in ("image", "video"):
        from PIL import Image

        if file.kind == "image":
            return Image.fromarray(file.array)
        return [Image.fromarray(frame) for frame in file.array]
    import torch

    return torch.from_numpy(file.array.copy()).to(device)
