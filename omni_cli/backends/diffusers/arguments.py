"""The arguments of a pipeline's call: those of a request over those of its stage.

Names and types are checked here; what values mean, the pipeline decides in its call.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib import import_module
from typing import Any

from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.bounds import MAX_FPS, MAX_FRAMES_MADE
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import holds_files
from omni_cli.requests.pipeline_call import PipelineCall
from omni_cli.requests.value_types import Types

# The rate of diffusers' functions that write files, `export_to_video` and `export_to_gif`.
DEFAULT_FPS = Fraction(10)


@dataclass(frozen=True)
class FrameRate:
    """The rate of a video's file; the call's argument for it, if the user or the profile sets the rate.

    `note` is for the user of a pipeline that does not say its rate.
    """

    rate: Fraction
    arguments: Mapping[str, float | int] = field(default_factory=dict)
    note: str | None = None


def frame_rate(call: PipelineCall, settings: Mapping[str, object], chosen: object) -> FrameRate | None:
    """Return the rate of a request's video; None for a pipeline that makes none. Raises `InputError`.

    `chosen` is the rate in the request or the profile, a number or a Fraction; None means the first of: the call's own
    argument among `settings`, its default, the rate of the file in the documentation of the pipeline's class,
    `DEFAULT_FPS`.
    """
    if call.makes != "video":
        if chosen is not None:
            raise InputError(f"{call.pipeline} makes no video", hint="remove `fps`")
        return None
    argument = call.argument_for("fps")
    if chosen is not None:
        rate = _check_rate("fps", chosen)
        return FrameRate(rate, {} if argument is None else {argument: _value(call, argument, rate)})
    if argument is not None:
        own = settings.get(argument)
        own = call.arguments[argument].default if own is None else own
        if own is not None:
            return FrameRate(_check_rate(argument, own))
    if call.example_fps is not None:
        return FrameRate(call.example_fps)
    note = f"{call.pipeline} does not say its frame rate: the video has {DEFAULT_FPS} frames per second"
    return FrameRate(DEFAULT_FPS, note=f"{note}; `fps` sets another")


def with_num_frames(
    arguments: Mapping[str, object], rate: Fraction, pipeline: object, call: PipelineCall
) -> Mapping[str, object]:
    """Return a request's arguments with the number of frames that comes closest to its `duration` in seconds.

    Raises `InputError` for one that has both.
    """
    name = call.argument_for("num_frames")
    if "duration" not in arguments or call.argument_for("duration") is not None or name is None:
        return arguments
    others = {key: value for key, value in arguments.items() if key != "duration"}
    if {"num_frames", name} & others.keys():
        raise InputError("`duration` and `num_frames` exclude each other", hint="remove one of them")
    wanted = Fraction(str(arguments["duration"])) * rate
    group = _group(pipeline, call.arguments[name].default) or 1
    count = 1 + group * max(0, round((wanted - 1) / group))
    if count > MAX_FRAMES_MADE:
        raise InputError(f"`duration` would be {count} frames; the maximum is {MAX_FRAMES_MADE}")
    return {**others, "num_frames": count}


def _group(pipeline: object, default: object) -> int | None:
    """Return the number of frames per latent frame after the first one; None where that is not the rule."""
    group = getattr(pipeline, "vae_temporal_compression_ratio", None)
    if isinstance(default, int):
        group = group or getattr(pipeline, "vae_scale_factor_temporal", None)
        # Others, such as Mochi's and Allegro's, group frames in another way.
        group = group if isinstance(group, int) and (default - 1) % group == 0 else None
    return group if isinstance(group, int) else None


def _check_rate(name: str, value: object) -> Fraction:
    try:
        rate = value if isinstance(value, Fraction) else Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"`{name}` must be a number of frames per second, not {value!r}") from error
    if not 0 < rate <= MAX_FPS:
        raise InputError(f"`{name}` must be above 0 and at most {MAX_FPS} frames per second, not {float(rate):g}")
    return rate


def _value(call: PipelineCall, name: str, rate: Fraction) -> float | int:
    types = {value_type.name for value_type in call.arguments[name].types}
    return rate.numerator if rate.denominator == 1 and "int" in types and "float" not in types else float(rate)


# The side of the images that a pipeline is warmed up with where its stage sets no size.
_WARM_UP_PIXELS = 512
_WARM_UP_FRAMES = 17
# Returned by tokenizers whose files set no limit (transformers' VERY_LARGE_INTEGER is 1e30).
_NO_LIMIT = 10**9


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
    fps = _frame_rate(request, config, call)
    arguments = request.call if fps is None else with_num_frames(request.call, fps.rate, pipeline, call)
    resolved = _fill(replace(request, call=call.own_names(arguments)), config, call, fps)
    tokens, notes = _count_prompts(pipeline, call, resolved)
    notes += _note_on_steps(resolved, request)
    if fps is not None and fps.note is not None:
        notes.append(fps.note)
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
        _fill(request, config, call, _frame_rate(request, config, call))
    except InputError as error:
        raise InputError(f"stage `{config.name}`: {error.message}", hint=error.hint) from None
    return config


def grey_media(call: PipelineCall, config: DiffusionStageConfig) -> Iterator[dict[str, object]]:
    """Yield media to warm up with, grey: none, an image for each argument that takes one, and a video beside them.

    A pipeline's signature does not show which media it needs.
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
        class_type = next((value_type for value_type in types if value_type.fields), None)
        if class_type is None:
            return value
        module, _, name = class_type.location.partition(":")
        return getattr(import_module(module), name)(**value)
    if isinstance(value, list | tuple):
        item_types = tuple(item for value_type in types for items in value_type.items for item in items)
        return type(value)(_instances(item_types, item) for item in value)
    return value


def _frame_rate(request: DiffusionRequest, config: DiffusionStageConfig, call: PipelineCall) -> FrameRate | None:
    chosen = config.fps if request.fps is None else request.fps
    return frame_rate(call, {**config.call, **request.call}, chosen)


def _fill(
    request: DiffusionRequest, config: DiffusionStageConfig, call: PipelineCall, fps: FrameRate | None
) -> DiffusionRequest:
    if twice := sorted(request.call.keys() & set(PIPELINE_ARGUMENTS)):  # of a stage, which has keys for them
        raise InputError(f"`{twice[0]}` is set twice", hint=f"set `{twice[0]}` next to `call`, not in it")
    for name in ("prompt", *PIPELINE_ARGUMENTS):
        if getattr(request, name) is not None and name not in call.arguments:
            raise InputError(f"this pipeline takes no `{name}`", hint=f"remove `{name}`")
    further = {name: call.check_value(name, value) for name, value in {**config.call, **request.call}.items()}
    if named := [name for name, value in further.items() if holds_files(value)]:  # a stage reads no files
        raise InputError(f"`{named[0]}` cannot name a file here", hint=f"use `omni generate --arg {named[0]}=@FILE`")
    values: dict[str, Any] = {
        name: getattr(config if getattr(request, name) is None else request, name) for name in PIPELINE_ARGUMENTS
    }
    steps = call.arguments.get("num_inference_steps")
    if values["num_inference_steps"] is None and steps is not None:
        values["num_inference_steps"] = steps.default
    return replace(
        request,
        fps=None if fps is None else fps.rate,
        call=further if fps is None else {**further, **fps.arguments},
        **values,
    )


def _note_on_steps(resolved: DiffusionRequest, request: DiffusionRequest) -> list[str]:
    """Report a request's number of steps that its own schedule overrides; the stage's value is overridden silently."""
    steps = request.num_inference_steps
    for name in ("sigmas", "timesteps"):
        schedule = resolved.call.get(name)
        if isinstance(schedule, list | tuple) and steps is not None and steps != len(schedule):
            return [f"`num_inference_steps` {steps} has no effect beside `{name}` of {len(schedule)} steps"]
    return []


def _count_prompts(pipeline: Any, call: PipelineCall, request: DiffusionRequest) -> tuple[tuple[int, ...], list[str]]:
    """Return the token counts of prompt and negative prompt per tokenizer, and a sentence for each that is cut."""
    tokenizers = _tokenizers(pipeline)
    counts: list[int] = []
    notes: list[str] = []
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        for part, tokenizer in tokenizers.items() if text is not None else ():
            count, limit = _count(pipeline, tokenizer, text or ""), _limit(pipeline, tokenizer, call, request)
            counts.append(count)
            if count > limit:
                of_which = "the text encoder reads" if len(tokenizers) == 1 else f"that of `{part}` reads"
                notes.append(f"`{name}` is truncated: it has {count} tokens, of which {of_which} {limit}")
    return tuple(counts), notes


def _tokenizers(pipeline: Any) -> dict[str, Any]:
    """Return the pipeline's tokenizers in name order, without processors, which have no length limit of their own."""
    parts = {name: part for name, part in pipeline.components.items() if name.startswith("tokenizer")}
    return {name: parts[name] for name in sorted(parts) if hasattr(parts[name], "model_max_length")}


def _is_clip(tokenizer: object) -> bool:
    return type(tokenizer).__name__.startswith("CLIP")


def _count(pipeline: Any, tokenizer: Any, text: str) -> int:
    """Count tokens towards the limit: with special tokens, without the dropped part of a template.

    Some pipelines encode only the texts in quotes, each on its own.
    """
    if hasattr(pipeline, "get_glyph_texts"):
        (quoted,) = pipeline.get_glyph_texts(text)
        return max((len(tokenizer(part, verbose=False).input_ids) for part in quoted), default=0)
    template = getattr(pipeline, "prompt_template_encode", None)
    if _is_clip(tokenizer) or not isinstance(template, str) or "{}" not in template:
        return len(tokenizer(text, verbose=False).input_ids)
    dropped = getattr(pipeline, "prompt_template_encode_start_idx", 0)
    return len(tokenizer(template.format(text), verbose=False).input_ids) - dropped


def _limit(pipeline: Any, tokenizer: Any, call: PipelineCall, request: DiffusionRequest) -> int:
    """Return a tokenizer's limit: CLIP's positions are fixed, others follow `max_sequence_length` if there is one."""
    own = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    if _is_clip(tokenizer):
        return own or _NO_LIMIT
    default = call.arguments.get("max_sequence_length")
    length: Any = request.call.get("max_sequence_length") or (None if default is None else default.default)
    if length is None and hasattr(pipeline, "encode_prompt"):
        parameter = inspect.signature(pipeline.encode_prompt).parameters.get("max_sequence_length")
        length = parameter.default if parameter is not None and isinstance(parameter.default, int) else None
    limit: int = length or getattr(pipeline, "tokenizer_max_length", None) or own or _NO_LIMIT
    return limit
