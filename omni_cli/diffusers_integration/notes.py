"""Notes on what a pipeline changes about a request: in its own words, and by what comes out of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omni_cli.diffusers_integration.arguments import call_arguments
from omni_cli.diffusers_integration.requests import DiffusionOutput, DiffusionRequest
from omni_cli.inputs.pipeline_call import PipelineCall

# Where pipelines check and change their inputs. Other modules log about models and weights.
PIPELINE_MODULES = (
    "diffusers.pipelines.", "diffusers.modular_pipelines.", "diffusers.image_processor", "diffusers.video_processor",
)  # fmt: skip


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
