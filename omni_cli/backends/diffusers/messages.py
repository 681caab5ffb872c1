"""Sentences on a request: notes on what a pipeline changes about it, and the error for a pipeline's exception."""

from __future__ import annotations

import importlib.util
import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omni_cli.backends.diffusers.arguments import call_arguments
from omni_cli.backends.diffusers.memory import advise_settings
from omni_cli.backends.diffusers.outputs import BadOutputError
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError, OmniError, StageError
from omni_cli.requests.pipeline_call import PipelineCall
from omni_cli.stage.failures import translate

# Where pipelines check and change their inputs. Other modules log about models and weights.
PIPELINE_MODULES = (
    "diffusers.pipelines.", "diffusers.modular_pipelines.", "diffusers.image_processor", "diffusers.video_processor",
)  # fmt: skip
# Raised by whatever uses wrong values first; subclasses of RuntimeError are a device's and a compiler's.
_OF_WRONG_VALUES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError)
# Names under which a package is installed, where they differ from that of its module.
_INSTALLED_AS = {"cv2": "opencv-python", "bs4": "beautifulsoup4"}


class _Messages(logging.Handler):
    """Keeps each message of a pipeline once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(PIPELINE_MODULES):
            self.texts.setdefault(" ".join(record.getMessage().split()))


@contextmanager
def heard_messages() -> Iterator[_Messages]:
    """Collect what pipelines log as a warning, such as a size that they round, whatever diffusers' verbosity."""
    messages, logger = _Messages(), logging.getLogger("diffusers")
    level = logger.level
    logger.addHandler(messages)
    logger.setLevel(min(level, logging.WARNING))
    try:
        yield messages
    finally:
        logger.removeHandler(messages)
        logger.setLevel(level)


def notes_of_call(pipeline: Any, request: DiffusionRequest, messages: _Messages, call: PipelineCall) -> tuple[str, ...]:
    """Return the notes on a call that has ended: what diffusers logged, and a negative prompt without effect.

    Messages about other arguments than those that are set concern the pipeline's defaults.
    """
    is_cut = any("truncated" in note for note in request.notes)
    arguments = call_arguments(request, call).keys()
    notes = []
    for text in messages.texts:
        named = call.arguments.keys() & set(re.findall(r"\w+", text))
        if not (named and not named & arguments) and not (is_cut and "truncated" in text):
            notes.append(f"diffusers: {text}")
    guides = getattr(pipeline, "do_classifier_free_guidance", None)
    if request.negative_prompt and guides is False and not any("negative_prompt" in note for note in notes):
        notes.append("`negative_prompt` has no effect: the pipeline's guidance is off at this guidance scale")
    return tuple(notes)


def differences(
    request: DiffusionRequest,
    asked: Mapping[str, Any],
    output: DiffusionOutput,
    call: PipelineCall,
    sample_rate: int | None,
) -> list[str]:
    """Return a sentence for each size, number of frames or length that came out other than requested.

    `request` is resolved; `asked` are the fields of the request as it arrived.
    """
    sentences: dict[str, None] = {}
    for what, width, height in _sizes(output):
        wanted = (
            width if request.width is None else request.width, height if request.height is None else request.height
        )  # fmt: skip
        if (width, height) != wanted:
            sentences[f"the {what} has {width}x{height} pixels, not {wanted[0]}x{wanted[1]} as requested"] = None
    seconds = asked.get("duration")
    frames = request.call.get(call.argument_for("num_frames") or "")
    for video in output.videos:
        count = len(video)
        if seconds is None and isinstance(frames, int | float) and count != frames:
            sentences[f"the video has {count} frames, not {frames} as requested"] = None
        if seconds is not None and request.fps and abs(count / float(request.fps) - seconds) > 0.5 / float(request.fps):
            sentences[f"the video is {count / float(request.fps):.6g} s long, not {seconds:.6g} s as requested"] = None
    wanted_s: Any = request.call.get(call.argument_for("duration") or "")
    if not output.videos and wanted_s is not None and sample_rate is not None:
        for samples in output.sounds:
            if abs(len(samples) - wanted_s * sample_rate) > 1:
                made_s = len(samples) / sample_rate
                sentences[f"the audio is {made_s:.6g} s long, not {wanted_s:.6g} s as requested"] = None
    return list(sentences)


def _sizes(output: DiffusionOutput) -> Iterator[tuple[str, int, int]]:
    for pixels in output.images:
        yield "image", pixels.shape[1], pixels.shape[0]
    for video in output.videos:
        yield "video", *video.size


def describe_failure(
    raised: Exception,
    config: DiffusionStageConfig,
    requests: Sequence[DiffusionRequest],
    *,
    has_denoised: bool = True,
) -> OmniError:
    """Return the error of all requests that shared the failed pipeline call, with its traceback in `details`.

    A pipeline rejects a request by an exception of its own, or fails on its values in the first step or before. The
    frames of the call are cleared: they hold its tensors, which would live as long as the error.
    """
    import torch

    details = "".join(traceback.format_exception(raised))
    keys = list(_memory_keys(raised, config))
    is_of_values = isinstance(raised, _OF_WRONG_VALUES) or type(raised) is RuntimeError
    is_rejection = _is_of_pipeline(raised) or (is_of_values and not has_denoised)
    traceback.clear_frames(raised.__traceback__)
    # torch's CPU allocator raises a plain RuntimeError.
    out_of_memory = isinstance(raised, torch.OutOfMemoryError | MemoryError) or "can't allocate" in str(raised)
    translated, hint = translate(" ".join(str(raised).split()), config)
    if out_of_memory:
        size = "" if requests[0].width is None else f" of {requests[0].width}x{requests[0].height}"
        message = f"not enough memory for {'an image' if len(requests) == 1 else f'{len(requests)} images'}{size}"
        ours = " or ".join(f"`--set {key}`" for key in keys)
        hint = ", or ".join(filter(None, ("use a smaller `height` and `width`", ours, hint)))
    elif isinstance(raised, BadOutputError) and all(request.num_inference_steps == 1 for request in requests):
        # Schedules that end at a given noise level divide by zero when the first step is the last.
        return InputError(f"{raised}: this model needs more than one step", hint="use 2 `num_inference_steps` or more")
    elif isinstance(raised, BadOutputError):
        message, hint = str(raised), "try more `num_inference_steps`, other guidance, or `dtype: float32`"
    elif isinstance(raised, NameError) and raised.name and importlib.util.find_spec(raised.name) is None:
        # A pipeline imports some modules only where they are installed.
        package = _INSTALLED_AS.get(raised.name, raised.name)
        message, hint = f"the pipeline needs the package `{package}`", f"pip install {package}"
    elif is_rejection:
        words = translated if isinstance(raised, ValueError) else f"{type(raised).__name__}: {translated}"
        return InputError(f"stage `{config.name}`: its pipeline rejects the request: {words}", hint=hint)
    else:
        message = translated if hint else f"{type(raised).__name__}: {translated}"
    return StageError(
        f"stage `{config.name}`: {message}",
        stage=config.name,
        request_id=requests[0].request_id if len(requests) == 1 else None,
        hint=hint,
        details=details,
    )


def _is_of_pipeline(raised: Exception) -> bool:
    """Return True if a pipeline of diffusers raised it itself: some check their inputs only where they use them."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(raised.__traceback__)]
    return isinstance(raised, ValueError | TypeError) and bool(modules) and modules[-1].startswith(PIPELINE_MODULES)


def _memory_keys(raised: Exception, config: DiffusionStageConfig) -> Iterator[str]:
    """Yield settings that would save memory where the call failed; reads the frames of its traceback."""
    import torch

    objects = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(raised.__traceback__))
    if any(getattr(one, "use_tiling", None) is False for one in objects):
        yield f"{config.name}.enable_vae_tiling=true"
    yield from advise_settings(config, "cuda" if isinstance(raised, torch.OutOfMemoryError) else "cpu")
