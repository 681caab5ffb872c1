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

from omni_cli.backends.diffusers.description import class_named, described_class, described_modular
from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import OmniError
from omni_cli.models.diffusers_pipeline.reference import get_arrays
from omni_cli.requests.contents import CallFile, NestedCall, Video
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.pipeline_call import PipelineCall
from omni_cli.stage.messages import AddRequest, decode_command, encode
from support.request_fields import with_fields
from support.stage_specs import get_spec
from support.tiny_pipelines.build import TinyPipeline, build
from support.tiny_pipelines.media import is_medium
from support.tiny_pipelines.page import Checked, is_modular

SEED = 3
# What a pipeline starts from, by arguments of its call.
_SOURCES = {
    "video": {"video"},
    "audio": {"audio"},
    "image": {"image", "images", "input_images", "cond_image", "original_image", "editing_prompt"},
    "text": {"prompt", "task_prompt", "prompt_segments"},
}


def check(declared: TinyPipeline, folder: Path) -> Checked:
    """Build the checkpoint, call both, and compare what they return."""
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.disable_progress_bar()
        library.set_verbosity_error()
    kind = kind_of(declared)
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


def call_named(name: str) -> PipelineCall:
    """The call of one of diffusers' classes, of a modular one with its own blocks."""
    return described_modular(class_named(name)()) if is_modular(name) else described_class(class_named(name))


def kind_of(declared: TinyPipeline) -> str:
    """The kind of output and of input: of all that a class takes, or of what a modular one is given here."""
    call = call_named(declared.name)
    given = declared.call.keys() if is_modular(declared.name) else call.arguments.keys()
    needed = {each for each, argument in call.arguments.items() if argument.is_required}
    makes = set(call.outputs)
    made = "image"
    if makes & {"frames", "video", "videos"}:
        made = "video with sound" if makes & {"audio", "audios", "sound"} else "video"
    elif makes & {"audios"}:
        made = "audio"
    elif makes & {"prediction"}:
        return "image to depth, normals or intrinsics"
    elif makes & {"texts", "sequences"}:
        return "text"
    elif makes and not makes & {"images", "image"}:
        return "embeddings" if any("embed" in name for name in makes) else "other"
    if given & {"mask_image", "mask", "mask_video", "control_mask"} and "mode" not in given:
        return f"{made} inpainting"
    controls = {"hint", "conditioning_frames", "adapter_conditioning_scale"}
    if given & controls or any("control" in name for name in given):
        return f"{made} from a control"
    source = next((source for source, names in _SOURCES.items() if given & names), None)
    if source is None and ("latents" in needed or any("embed" in name for name in needed)):
        source = "embeddings or latents"
    return f"unconditional {made}" if source is None else f"{source} to {made}"


def _line(error: Exception) -> str:
    """The first sentence of an error."""
    text = " ".join(str(error).replace("|", "/").split()).partition(". ")[0]
    return f"{type(error).__name__}: {text[:160].removesuffix('.')}"


def plain_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    """The output of diffusers' own call with its default output type, as `get_arrays`."""
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
    output_type = call_named(declared.name).arguments.get("output_type")
    if output_type is not None and output_type.default == "latent":
        arguments["output_type"] = "pil"
    made = pipeline(**arguments)
    return get_arrays({"images": _shown(pipeline, made.prediction)} if "prediction" in made else made)


def _modular_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    import torch
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(folder)
    pipeline.load_components()
    torch.manual_seed(SEED)
    generator = torch.Generator("cpu").manual_seed(SEED)
    return get_arrays(pipeline(**declared.call, generator=generator, output=pipeline.blocks.output_names))


def _shown(pipeline: Any, prediction: np.ndarray) -> list[Image.Image]:
    """A prediction (N, height, width, 1 or 3) in the colours of the pipeline's own processor."""
    processor, targets = pipeline.image_processor, getattr(pipeline, "target_properties", None)
    if targets:
        return [image for each in processor.visualize_intrinsics(prediction, targets) for image in each.values()]
    show = processor.visualize_depth if prediction.shape[-1] == 1 else processor.visualize_normals
    images: list[Image.Image] = show(prediction)
    return images


def omni_output(declared: TinyPipeline, folder: Path) -> list[np.ndarray]:
    """The output of a stage over the same checkpoint, as `get_arrays`; the frames of a video are not encoded yet."""
    config = DiffusionStageConfig.create("image", enable_vae_tiling=declared.is_tiled or None)
    spec = replace(get_spec(config, str(folder)), dtype=declared.dtype)
    request = decode_command(encode(AddRequest(stage_request(declared.call, call_named(declared.name))))).request
    stage = DiffusersStage(spec, lambda report: None)
    try:
        request = stage.executor.resolve(stage.diffusion_request(request))
        (output,) = stage.executor.execute_model((request,))
        if output.error is not None:
            raise output.error
        videos = [frames.numpy() for frames in output.videos]
        return [*output.images, *videos, *output.sounds, *output.tensors.values()]
    finally:
        stage.close()


def stage_request(call: Mapping[str, object], pipeline_call: PipelineCall) -> GenerateRequest:
    """The stage's request for the arguments of a call: options for those that have one, else `--arg`."""
    fields: dict[str, Any] = {"diffusion": {}, "call_files": {}, "seed": SEED}
    for name, value in call.items():
        medium = pipeline_call.get_field(name) if is_medium(value) else None
        if name == "prompt":
            fields["prompt"] = value
        elif medium == "mask" and isinstance(value, Image.Image):
            (fields["mask"],) = _arrays(value)
        elif medium == "video" and isinstance(value, list):
            frames = np.stack([np.asarray(frame) for frame in value])
            fields["videos"] = (Video(frames, 10.0, len(frames), tuple(range(len(frames)))),)
        elif medium in ("image", "control_image") and not _has_rows(value):
            fields[f"{medium}s"] = _arrays(value)
        elif is_medium(value):
            fields["call_files"][name] = _files(value)
        else:
            fields["diffusion"][name] = value
    return with_fields(GenerateRequest("0"), **fields)


def _arrays(value: Any) -> tuple[np.ndarray, ...]:
    images = value if isinstance(value, list) else [value]
    return tuple(np.asarray(image.convert("RGB")) for image in images)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], list)


def _files(value: Any) -> NestedCall[object]:
    if value is None or isinstance(value, list):
        return value and [_files(each) for each in value]
    if isinstance(value, Image.Image):
        return CallFile("image", _arrays(value)[0])
    return CallFile("tensor", np.asarray(value))


def _check_worth(arrays: list[np.ndarray]) -> None:
    """Raise `ValueError` for outputs that would equal anything."""
    numbers = [array for array in arrays if array.dtype.kind in "fu"]
    if any(not np.isfinite(array).all() for array in numbers if array.dtype.kind == "f"):
        raise ValueError("the output has NaN or infinite values")
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
