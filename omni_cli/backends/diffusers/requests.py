"""Inputs and outputs of a diffusion stage. Imports neither torch nor diffusers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from omni_cli.config.schema import PIPELINE_ARGUMENTS
from omni_cli.core.errors import OmniError

if TYPE_CHECKING:
    from omni_cli.backends.diffusers.outputs import Frames

FinishReason = Literal["stop", "abort", "error"]


@dataclass(frozen=True)
class DiffusionRequest:
    """One call of the pipeline.

    `None` means the stage's value, else the pipeline's default. `height` and `width` are in pixels; `call` holds
    further arguments of the pipeline call by diffusers' names. `num_prompt_tokens` holds the token counts of prompt and
    negative prompt for each of the pipeline's tokenizers, set by `DiffusersPipelineExecutor.resolve`; None means "not
    checked yet". `conditions` are arguments of the call from the previous stage, such as tensors; only requests without
    them can be stacked. `fps` is the rate of the video's file, and of calls that take it; a Fraction once it is
    resolved. `lora` names the adapter of the call, None for the base model. `notes` are sentences on what is changed
    about it.
    """

    request_id: str
    prompt: str | None
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int = 0
    call: Mapping[str, Any] = field(default_factory=dict)
    num_prompt_tokens: tuple[int, ...] | None = None
    conditions: Mapping[str, object] = field(default_factory=dict)
    fps: Fraction | float | str | None = None
    lora: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_arguments(
        cls,
        request_id: str,
        prompt: str | None,
        seed: int,
        arguments: Mapping[str, Any],
        conditions: Mapping[str, object] | None = None,
    ) -> DiffusionRequest:
        """Build a request from flat call arguments by diffusers' names, such as `GenerateRequest.diffusion`."""
        standard = {name: arguments[name] for name in PIPELINE_ARGUMENTS if name in arguments}
        call = {name: value for name, value in arguments.items() if name not in standard and name != "fps"}
        settings = {"seed": seed, "fps": arguments.get("fps"), **standard}
        return cls(request_id, prompt, call=call, conditions=conditions or {}, **settings)


def batch_key(request: DiffusionRequest) -> Hashable:
    """Return a key that is equal for requests whose pipeline calls differ only in prompt, negative prompt and seed.

    It includes whether there is a negative prompt, which doubles the work of a step, and not the dtype, which is the
    executor's.
    """
    return (
        *(getattr(request, name) for name in PIPELINE_ARGUMENTS if name != "negative_prompt"),
        request.negative_prompt is not None,
        request.lora,
        freeze(request.call),
    )


def freeze(value: object) -> Hashable:
    """Convert a plain value (numbers, strings, lists, mappings) to a hashable one; different types stay different.

    Raises `TypeError` for other values, such as tensors.
    """
    if isinstance(value, Mapping):
        return ("mapping", frozenset((freeze(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("sequence", tuple(freeze(item) for item in value))
    if value is None or isinstance(value, str | int | float | bool):
        return (type(value).__name__, value)
    raise TypeError(f"not a plain value: {type(value).__name__}")


@dataclass(frozen=True)
class DiffusionTimes:
    """Seconds spent on one request; on a CUDA device measured there, between events of its stream.

    `text_encode_s` is near 0 if the prompt cache had the embeddings; `vae_encode_s` is the time of a request's images
    in the VAE, None without any. `denoise_step_s` has one entry per step; the first
    begins with the first call of the denoiser, so preparing noise and timesteps counts only in `total_s`.
    `vae_decode_s` includes the conversion to uint8; it and `total_s` end with the image on the device, whose copy to
    the host may overlap with the next request. Pipelines that report no steps leave `denoise_step_s` empty and
    `vae_decode_s` None. Requests in one stacked pipeline call share its times.
    """

    text_encode_s: float
    vae_encode_s: float | None
    denoise_step_s: tuple[float, ...]
    vae_decode_s: float | None
    total_s: float


@dataclass(frozen=True)
class DiffusionOutput:
    """The end of one request.

    `images` are uint8 RGB or RGBA (height, width, 3 or 4), `sounds` float32 (num_samples,), with several channels
    (num_samples, channels), `videos` frames, with the sound of each in `sounds` if there is one, and `tensors` the
    fields of another output by name; one of them has entries exactly when it stopped normally.

    `error` is set exactly when `finish_reason` is "error". `notes` are sentences on what the pipeline changed.
    """

    request_id: str
    finish_reason: FinishReason
    images: tuple[np.ndarray, ...] = ()
    sounds: tuple[np.ndarray, ...] = ()
    videos: tuple[Frames, ...] = ()
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    times: DiffusionTimes | None = None
    error: OmniError | None = None
    notes: tuple[str, ...] = ()
