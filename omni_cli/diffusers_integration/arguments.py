"""The arguments of a pipeline's call: accepted ones, those that a request may set, and checks of a request.

Everything here inspects a loaded pipeline but runs none of its models.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig
from omni_cli.diffusers_integration.call_checks import (
    MEDIA,
    check_media,
    check_name,
    checked_value,
    option,
)
from omni_cli.diffusers_integration.frame_rates import check_num_frames, frame_rate
from omni_cli.diffusers_integration.prompt_length import check_prompt_lengths
from omni_cli.diffusers_integration.requests import DiffusionRequest
from omni_cli.diffusers_integration.signature import Medium, PipelineSignature, signature_of_pipeline
from omni_cli.diffusers_integration.value_types import is_finite_number, is_plain, takes_only_lists
from omni_cli.errors import InputError
from omni_cli.outputs import holds_files

# The largest size that published text-to-image models are trained for; more would need tens of GiB for the VAE alone.
MAX_PIXELS = 4096 * 4096
MAX_INFERENCE_STEPS = 1000
MAX_SEED = 2**64 - 1
# The side of the images that a pipeline is warmed up with where its stage sets no size.
_WARM_UP_PIXELS = 512
_WARM_UP_FRAMES = 17


@dataclass(frozen=True)
class PipelineCall:
    """A pipeline's `__call__`, inspected once.

    `defaults` maps argument names to their defaults (None if there is none); height and width must be multiples of
    `size_multiple`; `default_height` and `default_width` are what the pipeline takes where nobody sets them, in pixels,
    None if that depends on its input.
    """

    signature: PipelineSignature
    defaults: Mapping[str, object]
    size_multiple: int
    default_height: int | None
    default_width: int | None
    ignores_guidance_scale: bool

    @classmethod
    def inspect(cls, pipeline: Any) -> PipelineCall:
        parameters = inspect.signature(pipeline).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        defaults = {p.name: None if p.default is p.empty else p.default for p in named}
        return cls.of(pipeline, signature_of_pipeline(pipeline), defaults)

    @classmethod
    def of(cls, pipeline: Any, signature: PipelineSignature, defaults: Mapping[str, object]) -> PipelineCall:
        """Read the attributes of a pipeline, or of its stand-in."""
        height, width = _default_size(pipeline)
        # diffusers ignores `guidance_scale` if the transformer has no guidance embedding and the pipeline has
        # classifier-free guidance under another name.
        denoiser = getattr(pipeline, "transformer", None)
        embeds_guidance = getattr(getattr(denoiser, "config", None), "guidance_embeds", None)
        return cls(
            signature=signature,
            defaults=defaults,
            size_multiple=_size_multiple(pipeline),
            default_height=height,
            default_width=width,
            ignores_guidance_scale=embeds_guidance is False and "true_cfg_scale" in defaults,
        )

    def media_arguments(self, media: Mapping[Medium, Sequence[object]]) -> dict[str, object]:
        """Return the arguments for a request's media; raises `InputError` for a medium that the pipeline lacks."""
        arguments: dict[str, object] = {}
        check_media({medium: files for medium, files in media.items()}, self.signature)
        for medium, files in media.items():
            name = self.signature.argument_for(medium)
            if name is None:
                raise InputError(
                    f"{self.signature.name} takes no {MEDIA[medium].partition(' ')[2]}",
                    hint=f"remove {option(medium)}, or use a checkpoint of another pipeline",
                )
            # A video is a list of its frames.
            arguments[name] = files[0] if medium == "video" else self.file_value(name, files)
        return arguments

    def file_value(self, name: str, files: Sequence[object]) -> object:
        """Return one file, or a list if there are several or the call takes lists only."""
        is_list = len(files) > 1 or takes_only_lists(self.signature.arguments[name].type)
        return list(files) if is_list else files[0]

    def grey_media(self, width: int | None, height: int | None) -> dict[str, object]:
        """Return a grey image for each medium that the call needs, to warm up with."""
        from PIL import Image

        size = (width or _WARM_UP_PIXELS, height or _WARM_UP_PIXELS)
        modes = {medium: "L" if medium == "mask" else "RGB" for medium in self.signature.needed_media}
        images = {medium: Image.new(mode, size, "grey") for medium, mode in modes.items()}
        return self.media_arguments(
            {medium: [[image] * _WARM_UP_FRAMES] if medium == "video" else [image] for medium, image in images.items()}
        )

    def named(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return a request's arguments by the call's names for them; raises `InputError` for unknown ones."""
        named = dict(arguments)
        if "duration" in named and "duration" not in self.signature.arguments:
            name = self.signature.duration_argument
            if name is None:
                raise InputError(f"{self.signature.name} takes no duration", hint="remove `--duration`")
            named[name] = named.pop("duration")
        if "num_frames" in named and "num_frames" not in self.signature.arguments:
            name = self.signature.num_frames_argument
            if name is None:
                raise InputError(f"{self.signature.name} takes no number of frames", hint="remove `--num-frames`")
            named[name] = named.pop("num_frames")
        return named

    def takes_tensor(self, name: str) -> bool:
        """Tell whether a plain value of the argument must become a tensor."""
        argument = self.signature.arguments.get(name)
        return argument is not None and argument.file_kind == "tensor" and not is_plain(argument.type, tensors=False)

    def arguments(self, request: DiffusionRequest) -> dict[str, object]:
        """Return the arguments of the call that a resolved request sets, including its prompts."""
        standard = {name: getattr(request, name) for name in PIPELINE_ARGUMENTS}
        chosen = {name: value for name, value in standard.items() if value is not None and name in self.defaults}
        prompt = {} if request.prompt is None else {"prompt": request.prompt}
        return {**prompt, **chosen, **request.call, **request.conditions}


def resolve_request(
    request: DiffusionRequest,
    config: DiffusionStageConfig,
    pipeline: object,
    call: PipelineCall,
    max_pixels: int,
) -> DiffusionRequest:
    """Fill in the stage's and then the pipeline's values, check the request and return it; raises `InputError`.

    It does so before anything is encoded or denoised.
    """
    _check_names(request, call)
    _check_effect(request, call)
    _check_steps(request)
    resolved = _fill(request, config, call)
    _check_numbers(resolved, call)
    check_num_frames(pipeline, call.signature, call.defaults, resolved.call)
    _check_size(resolved, call, max_pixels)
    _check_negative_prompt(resolved, call)
    _check_needs(resolved, call)
    tokens = check_prompt_lengths(pipeline, call.defaults, resolved)
    _ask_pipeline(pipeline, call, resolved)
    return replace(resolved, num_prompt_tokens=tokens)


def foreign_arguments(config: DiffusionStageConfig, call: PipelineCall) -> tuple[str, ...]:
    """Return the stage's arguments that belong to another checkpoint's pipeline and that this one lacks."""
    useless = {"guidance_scale"} if call.ignores_guidance_scale else set()
    return tuple(name for name in config.droppable_arguments if name not in call.defaults or name in useless)


def without_arguments(config: DiffusionStageConfig, names: Collection[str]) -> DiffusionStageConfig:
    """Return the stage without these arguments of the pipeline's call."""
    kept = {name: value for name, value in config.call.items() if name not in names}
    unset = dict.fromkeys(name for name in PIPELINE_ARGUMENTS if name in names)
    return config.model_copy(update={**unset, "call": kept})


def check_stage(config: DiffusionStageConfig, call: PipelineCall) -> None:
    """Reject stage settings that the pipeline's call does not accept; raises `InputError` with the stage's name."""
    settings = {name: getattr(config, name) for name in PIPELINE_ARGUMENTS}
    request = DiffusionRequest("", None, call=config.call, **settings)
    try:
        _check_names(request, call)
        _check_effect(request, call)
        _check_numbers(request, call)
        frame_rate(call.signature, call.defaults, config.call, config.fps)
    except InputError as error:
        raise InputError(f"stage `{config.name}`: {error.message}", hint=error.hint) from None


def _fill(request: DiffusionRequest, config: DiffusionStageConfig, call: PipelineCall) -> DiffusionRequest:
    def first(name: str, default: Any = None) -> Any:
        for value in (getattr(request, name), getattr(config, name)):
            if value is not None:
                return value
        return default

    settings = {name: _plain(name, value, call) for name, value in {**config.call, **request.call}.items()}
    fps = frame_rate(call.signature, call.defaults, settings, first("fps"))
    if fps is not None:
        settings |= fps.arguments
    return replace(
        request,
        fps=None if fps is None else fps.rate,
        negative_prompt=first("negative_prompt"),
        height=first("height"),
        width=first("width"),
        num_inference_steps=first("num_inference_steps", call.defaults.get("num_inference_steps")),
        guidance_scale=first("guidance_scale"),
        call=settings,
    )


def _plain(name: str, value: object, call: PipelineCall) -> object:
    """Return a value in the type of the call's argument; rejects files, which a stage does not read."""
    checked = checked_value(name, value, call.signature)
    if holds_files(checked):
        raise InputError(f"`{name}` cannot name a file here", hint=f"use `omni generate --arg {name}=@FILE`")
    return checked


def _check_names(request: DiffusionRequest, call: PipelineCall) -> None:
    for name in request.call:
        check_name(name, call.signature)
    for name in ("prompt", *PIPELINE_ARGUMENTS):
        if getattr(request, name) is not None and name not in call.defaults:
            raise InputError(f"this pipeline takes no `{name}`", hint=f"remove `{name}`")


def _check_effect(request: DiffusionRequest, call: PipelineCall) -> None:
    """Reject settings of this request that diffusers would accept without any effect."""
    if request.guidance_scale is not None and call.ignores_guidance_scale:
        raise InputError(
            "`guidance_scale` has no effect on this model: it is not guidance-distilled",
            hint="set `true_cfg_scale`, together with `negative_prompt`",
        )


def _check_steps(request: DiffusionRequest) -> None:
    """Reject a number of steps beside a schedule that has its own; that of the stage gives way."""
    for name in ("sigmas", "timesteps"):
        schedule, steps = request.call.get(name), request.num_inference_steps
        if isinstance(schedule, list | tuple) and steps is not None and steps != len(schedule):
            raise InputError(
                f"`num_inference_steps` {steps} has no effect beside `{name}` of {len(schedule)} steps",
                hint=f"remove `num_inference_steps`, or `{name}`",
            )


def _check_negative_prompt(request: DiffusionRequest, call: PipelineCall) -> None:
    if request.negative_prompt is None:
        return
    name = "true_cfg_scale" if "true_cfg_scale" in call.defaults else "guidance_scale"
    scale = request.guidance_scale if name == "guidance_scale" else request.call.get(name)
    scale = call.defaults.get(name) if scale is None else scale
    if isinstance(scale, int | float) and scale <= 1:
        raise InputError(
            f"`negative_prompt` has no effect with `{name}` {scale:g}", hint=f"set `{name}` to more than 1"
        )


def _check_needs(request: DiffusionRequest, call: PipelineCall) -> None:
    """Reject a request without what its pipeline needs."""
    signature = call.signature
    given = {name for name, value in call.arguments(request).items() if value is not None}
    for group in signature.needed:
        if given & set(group):
            continue
        medium = signature.medium_of(group[0])
        if medium is not None:
            raise InputError(f"{signature.name} needs {MEDIA[medium]}", hint=f"add {option(medium)}")
        hint = "describe the output" if group[0] == "prompt" else f"add `--arg {group[0]}=VALUE`"
        raise InputError(f"{signature.name} needs {' or '.join(f'`{name}`' for name in group)}", hint=hint)


def _check_numbers(request: DiffusionRequest, call: PipelineCall) -> None:
    steps = request.num_inference_steps
    if steps is not None and (not _is_int(steps) or not 1 <= steps <= MAX_INFERENCE_STEPS):
        raise InputError(f"`num_inference_steps` must be 1 to {MAX_INFERENCE_STEPS}, not {steps!r}")
    if not _is_int(request.seed) or not 0 <= request.seed <= MAX_SEED:
        raise InputError(f"`seed` must be 0 to {MAX_SEED}, not {request.seed!r}")
    if request.guidance_scale is not None and not is_finite_number(request.guidance_scale):
        raise InputError(f"`guidance_scale` must be a finite number, not {request.guidance_scale!r}")
    for name, value in request.call.items():
        _plain(name, value, call)
        is_count = name.startswith("num_") and name.endswith("_per_prompt")
        if is_count and value is not None and (not _is_int(value) or value < 1):
            raise InputError(f"`{name}` must be at least 1, not {value!r}")
        if name in ("sigmas", "timesteps") and value == []:
            raise InputError(f"`{name}` is empty", hint=f"remove it, or give one for each step: `{name}=[1.0,0.5]`")
    length = request.call.get("max_sequence_length")
    if length is not None and (not _is_int(length) or length < 1):
        raise InputError(f"`max_sequence_length` must be at least 1, not {length!r}")


def _check_size(request: DiffusionRequest, call: PipelineCall, max_pixels: int) -> None:
    multiple = call.size_multiple
    for name in ("height", "width"):
        pixels = getattr(request, name)
        if pixels is None:
            continue
        if not _is_int(pixels) or pixels < 1:
            raise InputError(
                f"`{name}` must be at least {multiple} pixels, not {pixels!r}",
                hint=f"use a multiple of {multiple}, for example {multiple * max(1, 512 // multiple)}",
            )
        if pixels % multiple:
            below, above = pixels // multiple * multiple, (pixels // multiple + 1) * multiple
            near = f"{below} or {above}" if below else str(above)
            raise InputError(
                f"`{name}` must be a multiple of {multiple} for this pipeline, not {pixels}",
                hint=f"use {near}",
            )
    if request.height is not None and request.width is not None and request.height * request.width > max_pixels:
        side = math.isqrt(max_pixels) // multiple * multiple
        raise InputError(
            f"{request.width}x{request.height} is {request.height * request.width:,} pixels; "
            f"the maximum is {max_pixels:,}",
            hint=f"a square can be {side}x{side}",
        )


def _ask_pipeline(pipeline: object, call: PipelineCall, request: DiffusionRequest) -> None:
    """Run the pipeline's own checks, if it has any, so that it rejects a request before anything runs."""
    check_given = getattr(pipeline, "check_given", None)
    if check_given is not None:
        check_given(call.arguments(request))
    check = getattr(pipeline, "check_inputs", None)
    if check is None:
        return
    sizes = {"height": call.default_height, "width": call.default_width}
    known = {name: pixels for name, pixels in sizes.items() if pixels is not None}
    arguments = {**call.defaults, **known, **call.arguments(request), "callback_on_step_end_tensor_inputs": []}
    # `check_inputs` has parameters for older callbacks that the call lacks: pass None, except for `batch_size`.
    arguments.setdefault("batch_size", 1)
    arguments["callback_steps"] = 1 if "callback_steps" in call.defaults else None
    parameters = inspect.signature(check).parameters.values()
    values = {p.name: arguments.get(p.name) for p in parameters if p.default is p.empty or p.name in arguments}
    if any(values[name] is None for name in call.signature.replaced & values.keys()):
        return  # the call has not assigned its own value yet
    try:
        check(**values)
    except (TypeError, AttributeError, LookupError, AssertionError):
        # The call converts some values before it checks them, such as a number to a list of one; a stand-in lacks some.
        return
    except ValueError as error:
        raise InputError(f"{type(pipeline).__name__} rejects the request: {error}") from error


def _size_multiple(pipeline: object) -> int:
    """Combine the image processor's factor, which may include patches, with that of VAE times patches."""
    processor_config = getattr(getattr(pipeline, "image_processor", None), "config", None)
    factor = getattr(processor_config, "vae_scale_factor", None) or 1
    vae_factor, patch = getattr(pipeline, "vae_scale_factor", 1), getattr(pipeline, "patch_size", 1)
    if _is_int(vae_factor) and _is_int(patch):
        factor = math.lcm(factor, vae_factor * patch)
    return factor


def _default_size(pipeline: object) -> tuple[int | None, int | None]:
    """Return the pipeline's default height and width in pixels, by either convention of diffusers."""
    factor = getattr(pipeline, "vae_scale_factor", None)
    size = getattr(pipeline, "default_sample_size", None)
    for name in ("unet", "transformer"):
        if size is None:
            size = getattr(getattr(getattr(pipeline, name, None), "config", None), "sample_size", None)
    if not _is_int(factor) or size is None:
        return None, None
    height, width = (size, size) if _is_int(size) else tuple(size)
    return height * factor, width * factor


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
