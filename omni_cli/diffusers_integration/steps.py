"""Steps of a pipeline's call: how they are noticed, and how many there will be."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from omni_cli.compat import replaced

# The argument of the call that reports steps; without one, calls of the scheduler's `step` are counted.
StepCallback = Literal["callback_on_step_end", "callback", "scheduler", "none"]


def choose_step_callback(names: Collection[str], pipeline: object) -> StepCallback:
    """Return how steps are noticed; `names` are the arguments of the call."""
    if "callback_on_step_end" in names:
        return "callback_on_step_end"
    if {"callback", "callback_steps"} <= set(names):
        return "callback"
    return "scheduler" if hasattr(getattr(pipeline, "scheduler", None), "step") else "none"


def callback_arguments(kind: StepCallback, names: Collection[str], note_step: Callable[[], None]) -> dict[str, object]:
    """Return the arguments with which a call runs `note_step` after each step."""

    def on_step_end(_pipeline: object, _step: int, _timestep: object, _tensors: dict[str, object]) -> dict[str, object]:
        note_step()
        return {}

    def legacy(_step: int, _timestep: object, _latents: object) -> None:
        note_step()

    if kind == "callback_on_step_end":
        callback: dict[str, object] = {"callback_on_step_end": on_step_end}
        if "callback_on_step_end_tensor_inputs" in names:
            callback["callback_on_step_end_tensor_inputs"] = []
        return callback
    return {"callback": legacy, "callback_steps": 1} if kind == "callback" else {}


@contextmanager
def scheduler_steps(pipeline: Any, note_step: Callable[[], None]) -> Iterator[None]:
    """Run `note_step` after each step of the pipeline's scheduler, if it has one that makes steps."""
    scheduler = getattr(pipeline, "scheduler", None)
    owner: Any = next((base for base in type(scheduler).__mro__ if "step" in vars(base)), None)
    if owner is None:
        yield
        return
    step = owner.step

    # Pipelines look at its parameters. It is the class's, because a copy of the scheduler would share an instance's.
    @functools.wraps(step)
    def noted(this: object, *args: object, **kwargs: object) -> object:
        result = step(this, *args, **kwargs)
        if this is scheduler:
            note_step()
        return result

    with replaced(owner, step=noted):
        yield


def windowed_steps(pipeline: Any, arguments: Mapping[str, Any]) -> int | None:
    """Return the steps of a call that denoises a video in windows, each in stages; None for other calls."""
    if "history_sizes" not in arguments:
        return None
    num_frames = (arguments["num_latent_frames_per_chunk"] - 1) * pipeline.vae_scale_factor_temporal + 1
    stages = arguments.get("pyramid_num_inference_steps_list") or [arguments["num_inference_steps"]]
    windows: int = max(1, math.ceil(arguments["num_frames"] / num_frames))
    return windows * int(sum(stages))
