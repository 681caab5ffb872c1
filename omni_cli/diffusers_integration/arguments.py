"""The arguments of a pipeline's call: those of a request over those of its stage.

Names and types are checked here; what values mean, the pipeline decides in its call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig
from omni_cli.diffusers_integration.frame_rates import frame_rate
from omni_cli.diffusers_integration.prompt_length import count_prompts
from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.errors import InputError
from omni_cli.inputs.pipeline_call import FIELDS, MEDIA_ARGUMENTS, PipelineCall
from omni_cli.inputs.value_types import Types
from omni_cli.outputs import holds_files

# The side of the images that a pipeline is warmed up with where its stage sets no size.
_WARM_UP_PIXELS = 512
_WARM_UP_FRAMES = 17
# Fields of a request for which pipelines have several names.
_RENAMED = tuple(name for name in FIELDS if name not in (*MEDIA_ARGUMENTS, *PIPELINE_ARGUMENTS, "prompt", "fps"))


def named(arguments: Mapping[str, Any], call: PipelineCall) -> dict[str, Any]:
    """Return a request's arguments by the call's names for them; raises `InputError` for fields that it lacks."""
    found = dict(arguments)
    for field in (each for each in _RENAMED if each in arguments and each not in call.arguments):
        name = call.argument_for(field)
        if name is None:
            raise InputError(f"{call.pipeline} takes no `{field}`", hint=f"remove `--{field.replace('_', '-')}`")
        found[name] = found.pop(field)
    return found


def call_arguments(request: DiffusionRequest, call: PipelineCall) -> dict[str, object]:
    """Return the arguments of the call that a resolved request sets, including its prompts."""
    standard = {name: getattr(request, name) for name in PIPELINE_ARGUMENTS}
    chosen = {name: value for name, value in standard.items() if value is not None and name in call.arguments}
    prompt = {} if request.prompt is None else {"prompt": request.prompt}
    return {**prompt, **chosen, **with_instances(request.call, call), **request.conditions}


def with_instances(arguments: Mapping[str, object], call: PipelineCall) -> dict[str, object]:
    """Return arguments whose objects are instances of the classes that their types name."""
    return {name: _instances(call.check_name(name).types, value) for name, value in arguments.items()}


def resolve_request(
    request: DiffusionRequest, config: DiffusionStageConfig, pipeline: Any, call: PipelineCall
) -> DiffusionRequest:
    """Fill in the stage's and then the pipeline's values; raises `InputError` for what the call does not take."""
    _check_names(request, call)
    resolved = _fill(request, config, call)
    tokens, notes = count_prompts(pipeline, call, resolved)
    notes += _note_on_steps(resolved, request)
    if hasattr(pipeline, "notes_on"):
        notes += pipeline.notes_on(call_arguments(resolved, call))
    return replace(resolved, num_prompt_tokens=tokens, notes=(*request.notes, *notes))


def foreign_arguments(config: DiffusionStageConfig, call: PipelineCall) -> tuple[str, ...]:
    """Return the stage's arguments that belong to another checkpoint's pipeline and that this one lacks."""
    return tuple(name for name in config.droppable_arguments if name not in call.arguments)


def stage_for(call: PipelineCall, config: DiffusionStageConfig) -> DiffusionStageConfig:
    """Return the stage without `foreign_arguments`.

    Raises `InputError`, with the stage's name, for settings that the pipeline's call does not take.
    """
    foreign = foreign_arguments(config, call)
    kept = {name: value for name, value in config.call.items() if name not in foreign}
    unset = dict.fromkeys(name for name in PIPELINE_ARGUMENTS if name in foreign)
    config = config.model_copy(update={**unset, "call": kept})
    settings = {name: getattr(config, name) for name in PIPELINE_ARGUMENTS}
    request = DiffusionRequest("", None, call=config.call, **settings)
    try:
        _check_names(request, call)
        _fill(request, config, call)
    except InputError as error:
        raise InputError(f"stage `{config.name}`: {error.message}", hint=error.hint) from None
    return config


def grey_media(call: PipelineCall, config: DiffusionStageConfig) -> Iterator[dict[str, object]]:
    """Yield media to warm up with, grey: none, an image for each argument that takes one, and a video beside them.

    The signature of a pipeline does not tell the ones that it needs.
    """
    from PIL import Image

    size = (config.width or _WARM_UP_PIXELS, config.height or _WARM_UP_PIXELS)
    images: dict[str, object] = {}
    for medium in ("image", "mask", "control_image"):
        name = call.argument_for(medium)
        if name is not None:
            images |= call.media_arguments({medium: [Image.new("L" if medium == "mask" else "RGB", size, "grey")]})
    yield {}
    if images:
        yield images
    if call.argument_for("video") is not None:
        yield {**images, **call.media_arguments({"video": [[Image.new("RGB", size, "grey")] * _WARM_UP_FRAMES]})}


def _instances(types: Types, value: object) -> object:
    if isinstance(value, Mapping):
        made = next((each for each in types if each.fields), None)
        if made is None:
            return value
        module, _, name = made.location.partition(":")
        return getattr(import_module(module), name)(**value)
    if isinstance(value, list | tuple):
        inner = tuple(each for one in types for items in one.items for each in items)
        return type(value)(_instances(inner, each) for each in value)
    return value


def _check_names(request: DiffusionRequest, call: PipelineCall) -> None:
    for name in request.call:
        if name in PIPELINE_ARGUMENTS:  # of a stage, which has a key for it
            raise InputError(f"`{name}` is set twice", hint=f"set `{name}` next to `call`, not in it")
        call.check_name(name)
    for name in ("prompt", *PIPELINE_ARGUMENTS):
        if getattr(request, name) is not None and name not in call.arguments:
            raise InputError(f"this pipeline takes no `{name}`", hint=f"remove `{name}`")


def _fill(request: DiffusionRequest, config: DiffusionStageConfig, call: PipelineCall) -> DiffusionRequest:
    def first(name: str, default: Any = None) -> Any:
        for value in (getattr(request, name), getattr(config, name)):
            if value is not None:
                return value
        return default

    settings = {name: _plain(name, value, call) for name, value in {**config.call, **request.call}.items()}
    fps = frame_rate(call, settings, first("fps"))
    if fps is not None:
        settings |= fps.arguments
    steps = call.arguments.get("num_inference_steps")
    return replace(
        request,
        fps=None if fps is None else fps.rate,
        negative_prompt=first("negative_prompt"),
        height=first("height"),
        width=first("width"),
        num_inference_steps=first("num_inference_steps", None if steps is None else steps.default),
        guidance_scale=first("guidance_scale"),
        call=settings,
        notes=() if fps is None or fps.note is None else (fps.note,),
    )


def _plain(name: str, value: object, call: PipelineCall) -> object:
    """Return a value in the type of the call's argument; rejects files, which a stage does not read."""
    checked = call.checked(name, value)
    if holds_files(checked):
        raise InputError(f"`{name}` cannot name a file here", hint=f"use `omni generate --arg {name}=@FILE`")
    return checked


def _note_on_steps(resolved: DiffusionRequest, request: DiffusionRequest) -> list[str]:
    """Report a request's number of steps that its own schedule overrides; the stage's value is overridden silently."""
    steps = request.num_inference_steps
    for name in ("sigmas", "timesteps"):
        schedule = resolved.call.get(name)
        if isinstance(schedule, list | tuple) and steps is not None and steps != len(schedule):
            return [f"`num_inference_steps` {steps} has no effect beside `{name}` of {len(schedule)} steps"]
    return []
