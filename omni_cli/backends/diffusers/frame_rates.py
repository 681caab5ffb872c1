"""Frames of a video per second, and the number of frames of a length in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from omni_cli.config.bounds import MAX_FPS, MAX_FRAMES_MADE
from omni_cli.core.errors import InputError
from omni_cli.requests.pipeline_call import PipelineCall

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
