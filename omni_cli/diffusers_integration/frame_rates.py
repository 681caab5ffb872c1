"""Frames of a video per second, and how many of them a pipeline can make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.signature import PipelineSignature, example_fps
from omni_cli.errors import InputError
from omni_cli.inputs.fields import MAX_FRAMES_MADE
from omni_cli.video_encoding import MAX_FPS

# That of diffusers' functions that write files, `export_to_video` and `export_to_gif`.
DEFAULT_FPS = Fraction(10)


@dataclass(frozen=True)
class FrameRate:
    """The rate of a video's file, and the call's argument for it, if the user or the profile sets the rate.

    `is_known` is false for `DEFAULT_FPS`.
    """

    rate: Fraction
    arguments: Mapping[str, float | int] = field(default_factory=dict)
    is_known: bool = True


def frame_rate(
    signature: PipelineSignature, defaults: Mapping[str, object], settings: Mapping[str, object], chosen: object
) -> FrameRate | None:
    """The rate of a request's video; None for a pipeline that makes none. Raises `InputError`.

    `chosen` is that of the request or the profile, a number or a Fraction; None means the first of: the call's own
    argument among `settings`, its default, the rate of the file in the documentation of the pipeline's class,
    `DEFAULT_FPS`.
    """
    if signature.makes != "video":
        if chosen is not None:
            raise InputError(f"{signature.name} makes no video", hint="remove `fps`")
        return None
    argument = signature.frame_rate_argument
    if chosen is not None:
        rate = _checked("fps", chosen)
        return FrameRate(rate, {} if argument is None else {argument: _argument(signature, argument, rate)})
    if argument is not None and settings.get(argument, defaults.get(argument)) is not None:
        return FrameRate(_checked(argument, settings.get(argument, defaults.get(argument))))
    documented = example_fps(signature.name)
    return FrameRate(documented or DEFAULT_FPS, is_known=documented is not None)


def with_num_frames(
    arguments: Mapping[str, object],
    pipeline: object,
    signature: PipelineSignature,
    defaults: Mapping[str, object],
    config: DiffusionStageConfig,
) -> Mapping[str, object]:
    """A request's arguments with the number of frames that comes closest to its `duration` in seconds.

    Raises `InputError` for one that has both.
    """
    name = signature.num_frames_argument
    if "duration" not in arguments or signature.duration_argument is not None or name is None:
        return arguments
    others = {key: value for key, value in arguments.items() if key != "duration"}
    if {"num_frames", name} & others.keys():
        raise InputError("`duration` and `num_frames` exclude each other", hint="remove one of them")
    rate = frame_rate(signature, defaults, {**config.call, **others}, others.get("fps", config.fps))
    assert rate is not None  # it makes a video
    wanted = Fraction(str(arguments["duration"])) * rate.rate
    group = _group(pipeline, defaults.get(name)) or 1
    return {**others, "num_frames": 1 + group * max(0, round((wanted - 1) / group))}


def check_num_frames(
    pipeline: object, signature: PipelineSignature, defaults: Mapping[str, object], settings: Mapping[str, object]
) -> None:
    """Raise `InputError` for a number of frames that the pipeline would change; diffusers only logs that, if at all.

    Autoencoders that make one latent frame of the first frame, and one of each following group of frames, can make the
    first and whole groups.
    """
    name = signature.num_frames_argument
    count = None if name is None else settings.get(name)
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_FRAMES_MADE:
        raise InputError(f"`{name}` must be a whole number from 1 to {MAX_FRAMES_MADE}, not {count!r}")
    group = _group(pipeline, defaults.get(name or ""))
    if group is not None and (count - 1) % group:
        below = (count - 1) // group * group + 1
        raise InputError(
            f"{signature.name} makes 1 frame and groups of {group} more, not {count}",
            hint=f"use {below} or {below + group} frames",
        )


def _group(pipeline: object, default: object) -> int | None:
    """The number of frames per latent frame after the first one; None where that is not the rule."""
    group = getattr(pipeline, "vae_temporal_compression_ratio", None)
    if isinstance(default, int):
        group = group or getattr(pipeline, "vae_scale_factor_temporal", None)
        # Others, such as Mochi's and Allegro's, group frames in another way.
        group = group if isinstance(group, int) and (default - 1) % group == 0 else None
    return group if isinstance(group, int) else None


def _checked(name: str, value: object) -> Fraction:
    try:
        rate = value if isinstance(value, Fraction) else Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"`{name}` must be a number of frames per second, not {value!r}") from error
    if not 0 < rate <= MAX_FPS:
        raise InputError(f"`{name}` must be above 0 and at most {MAX_FPS} frames per second, not {float(rate):g}")
    return rate


def _argument(signature: PipelineSignature, name: str, rate: Fraction) -> float | int:
    if "float" in (signature.arguments[name].annotation or "float"):
        return float(rate)
    if rate.denominator > 1:
        raise InputError(
            f"{signature.name} takes a whole number of frames per second, not {float(rate):g}", hint="round `fps`"
        )
    return rate.numerator
