"""One pipeline class: the plain call of diffusers beside omni's stage, with the same inputs and seed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import transformers
from PIL import Image

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.modular_signature import modular_signature
from omni_cli.diffusers_integration.requests import DiffusionSchedulerOutput
from omni_cli.diffusers_integration.signature import PipelineSignature, signature_of
from omni_cli.diffusers_integration.stage import DiffusersStage
from omni_cli.diffusers_integration.stand_in import check_request, stand_in
from omni_cli.errors import OmniError
from omni_cli.outputs import GenerateRequest, Nested, Video
from omni_cli.stage.messages import Array, CallFileInput, StageRequest, VideoInput, decode_command, encode
from support.stage_specs import spec_of
from support.tiny_pipelines.build import TinyPipeline, build
from support.tiny_pipelines.media import is_medium
from support.tiny_pipelines.page import Checked, is_modular, kind_of

SEED = 3


def check(declared: TinyPipeline, folder: Path) -> Checked:
    """Build the checkpoint, call both, and compare what they return."""
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.disable_progress_bar()
        library.set_verbosity_error()
    kind = kind_of(declared.name)
    try:
        build(declared, folder)
        plain = plain_output(declared, folder)
        _check_worth(plain)
    except Exception as error:  # noqa: BLE001 - a pipeline raises anything, and the table has it
        return Checked(declared.name, kind, "not run by diffusers", _line(error))
    try:
        made = omni_output(declared, folder)
    except OmniError as error:
        return Checked(declared.name, kind, "refused", error.message.replace(str(folder), "the checkpoint"))
    except Exception as error:  # noqa: BLE001 - as above
        return Checked(declared.name, kind, "refused", f"internal error: {_line(error)}")
    difference = _difference(plain, made)
    return Checked(declared.name, kind, "runs" if difference else "identical", difference)


def _line(error: Exception) -> str:
    """The first sentence of an error."""
    text = " ".join(str(error).replace("|", "/").split()).partition(". ")[0]
    return f"{type(error).__name__}: {text[:160].removesuffix('.')}"


def plain_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    """The output of diffusers' own call with its default output type, as `arrays_of`."""
    import torch
    from diffusers import DiffusionPipeline

    if is_modular(declared.name):
        return _modular_output(declared, folder)
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=getattr(torch, declared.dtype))
    pipeline.set_progress_bar_config(disable=True)
    if declared.is_tiled:
        pipeline.vae.enable_tiling()
    arguments = dict(declared.call)
    # Some pipelines draw from the global generator, with or without another.
    torch.manual_seed(SEED)
    if "generator" in inspect.signature(pipeline.__call__).parameters:
        arguments["generator"] = torch.Generator("cpu").manual_seed(SEED)
    signature = signature_of(declared.name)
    assert signature is not None
    output_type = signature.arguments.get("output_type")
    if output_type is not None and output_type.default == "'latent'":
        arguments["output_type"] = "pil"
    made = pipeline(**arguments)
    return arrays_of({"images": _shown(pipeline, made.prediction)} if "prediction" in made else made)


def _modular_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    import torch
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(folder)
    pipeline.load_components()
    torch.manual_seed(SEED)
    generator = torch.Generator("cpu").manual_seed(SEED)
    return arrays_of(pipeline(**declared.call, generator=generator, output=pipeline.blocks.output_names))


def _shown(pipeline: Any, prediction: np.ndarray) -> list[Image.Image]:
    """A prediction (N, height, width, 1 or 3) in the colours of the pipeline's own processor."""
    processor, targets = pipeline.image_processor, getattr(pipeline, "target_properties", None)
    if targets:
        return [image for each in processor.visualize_intrinsics(prediction, targets) for image in each.values()]
    show = processor.visualize_depth if prediction.shape[-1] == 1 else processor.visualize_normals
    images: list[Image.Image] = show(prediction)
    return images


def omni_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    """The output of a stage over the same checkpoint, as `arrays_of`; the frames of a video are not encoded yet."""
    signature = signature_of(declared.name) or modular_signature(declared.name)
    assert signature is not None
    config = DiffusionStageConfig.named("image", enable_vae_tiling=declared.is_tiled or None)
    spec = replace(spec_of(config, str(folder)), dtype=declared.dtype)
    request = decode_command(encode(_request(declared.call, signature)))
    check_request(declared.name, folder, config, _before_loading(request))
    stage = DiffusersStage(spec, lambda report: None)
    try:
        if not is_modular(declared.name):
            _check_stand_in(declared.name, folder, stage.executor.pipeline)
        request = stage.executor.resolve(stage.diffusion_request(request))
        (output,) = stage.executor.execute_model(DiffusionSchedulerOutput((request,))).outputs
        if output.error is not None:
            raise output.error
        videos = [frames.numpy() for frames in output.videos]
        return [*output.images, *videos, *output.sounds, *output.tensors.values()]
    finally:
        stage.close()


def _request(call: Mapping[str, object], signature: PipelineSignature) -> StageRequest:
    """The stage's request for the arguments of a call: options for those that have one, else `--arg`."""
    fields: dict[str, Any] = {"diffusion": {}, "call_files": {}, "seed": SEED}
    for name, value in call.items():
        medium = signature.medium_of(name) if is_medium(value) else None
        if name == "prompt":
            fields["prompt"] = value
        elif medium == "mask" and isinstance(value, Image.Image):
            (fields["mask"],) = _arrays(value)
        elif medium == "video" and isinstance(value, list):
            frames = np.stack([np.asarray(frame) for frame in value])
            fields["videos"] = (VideoInput(Array.of(frames), 10.0, len(frames), tuple(range(len(frames)))),)
        elif medium in ("image", "control_image") and not _has_rows(value):
            fields[f"{medium}s"] = _arrays(value)
        elif is_medium(value):
            fields["call_files"][name] = _files(value)
        else:
            fields["diffusion"][name] = value
    return StageRequest("0", **fields)


def _before_loading(request: StageRequest) -> GenerateRequest:
    """The same request as the command has it, without the content of further files."""
    return GenerateRequest(
        request.request_id,
        request.prompt,
        images=tuple(image.numpy() for image in request.images),
        mask=None if request.mask is None else request.mask.numpy(),
        control_images=tuple(image.numpy() for image in request.control_images),
        videos=tuple(Video(video.frames.numpy(), video.fps, 0, ()) for video in request.videos),
        seed=request.seed,
        diffusion=request.diffusion,
        call_files=dict.fromkeys(request.call_files),
    )


def _check_stand_in(name: str, folder: Path, pipeline: Any) -> None:
    """Compare the attributes that the stand-in takes from the configuration files with those of the pipeline."""
    known = {key: value for key, value in vars(stand_in(name, folder)).items() if isinstance(value, int | float | str)}
    loaded = {key: getattr(pipeline, key, None) for key in known if key not in pipeline.config}
    assert loaded == {key: known[key] for key in loaded}, f"the stand-in has {known}, the pipeline {loaded}"


def _arrays(value: Any) -> tuple[Array, ...]:
    images = value if isinstance(value, list) else [value]
    return tuple(Array.of(np.asarray(image.convert("RGB"))) for image in images)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], list)


def _files(value: Any) -> Nested[CallFileInput]:
    if value is None or isinstance(value, list):
        return value and tuple(_files(each) for each in value)
    if isinstance(value, Image.Image):
        return CallFileInput("image", _arrays(value)[0])
    return CallFileInput("tensor", Array.of(np.asarray(value)))


def arrays_of(output: Any) -> list[np.ndarray]:
    """Flatten a pipeline's output.

    Images are uint8 (height, width, 3 or 4), videos uint8 (num_frames, height, width, 3), sounds float32 (num_samples,)
    or (num_samples, channels). Other arrays, as they are, if it has none of these.
    """
    found: list[np.ndarray] = []
    others: list[np.ndarray] = []
    for name, value in output.items():
        if name in ("images", "image"):
            found += _images(value)
        elif name in ("frames", "video", "videos"):
            # Some pipelines make one video without an axis for a batch.
            found += [np.stack(_images(video)) for video in (value if np.asarray(value[0]).ndim == 4 else [value])]
        elif name in ("audios", "audio", "sound"):
            found += [] if value is None else _sounds(value[None] if name == "sound" else value)
        elif value is not None:
            others += _others(value)
    return found or others


def _images(value: Any) -> list[np.ndarray]:
    """The images of a list, which may have lists of its own, or of an array."""
    if isinstance(value, Image.Image):
        return [np.asarray(value if value.mode == "RGBA" else value.convert("RGB"))]
    if isinstance(value, list | tuple):
        return [image for item in value for image in _images(item)]
    array = np.asarray(value)
    if not np.isfinite(array).all():
        raise ValueError("the output has values that are not numbers")
    if array.dtype.kind == "f":
        array = (array.astype(np.float32) * 255).round().astype(np.uint8)
    if array.shape[-1] > 4 and array.shape[-3] in (1, 3):
        array = np.moveaxis(array, -3, -1)
    return [array] if array.ndim == 3 else list(array)


def _sounds(value: Any) -> list[np.ndarray]:
    array = np.asarray(value, dtype=np.float32)
    items = [array] if array.ndim == 1 else list(array)
    return [item if item.ndim == 1 else item[0] if len(item) == 1 else item.T for item in items]


def _others(value: Any) -> list[np.ndarray]:
    if isinstance(value, list | tuple):
        return [array for item in value for array in _others(item)]
    return [np.asarray(value)]


def _check_worth(arrays: list[np.ndarray]) -> None:
    """Raise `ValueError` for outputs that would equal anything."""
    numbers = [array for array in arrays if array.dtype.kind in "fu"]
    if any(not np.isfinite(array).all() for array in numbers if array.dtype.kind == "f"):
        raise ValueError("the output has values that are not numbers")
    if numbers and all(array.std() == 0 for array in numbers):
        raise ValueError("the output is one value throughout")


def _difference(plain: list[np.ndarray], made: list[np.ndarray]) -> str:
    """The first difference in words; empty if there is none."""
    if len(plain) != len(made):
        return f"{len(made)} outputs instead of {len(plain)}"
    for expected, array in zip(plain, made, strict=True):
        if expected.shape != array.shape:
            return f"shape {array.shape} instead of {expected.shape}"
        if not np.array_equal(expected, array):
            apart = np.abs(expected.astype(np.float64) - array.astype(np.float64))
            return f"{np.count_nonzero(apart):,} of {apart.size:,} values differ, by up to {apart.max():g}"
    return ""
