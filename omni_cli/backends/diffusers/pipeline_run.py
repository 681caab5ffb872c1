"""One call of a pipeline: its arguments, progress, early end, times and output."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from omni_cli.backends.diffusers.arguments import call_arguments
from omni_cli.backends.diffusers.memory import PromptCache
from omni_cli.backends.diffusers.messages import heard_messages, notes_of_call
from omni_cli.backends.diffusers.outputs import (
    BadOutputError,
    Frames,
    OutputType,
    PendingCopies,
    first_field,
    from_bytes,
    output_type_for,
    pil_to_uint8,
    to_bytes,
    to_host,
    to_samples,
    visualize,
    with_batch_axis,
)
from omni_cli.backends.diffusers.parallel import find_denoiser
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest, DiffusionTimes
from omni_cli.backends.diffusers.step_cache import StepCaches
from omni_cli.backends.diffusers.weights import PipelineAdapters
from omni_cli.backends.execution.ranges import Clock, Consecutive, mark
from omni_cli.requests.pipeline_call import AUDIO_FIELDS, IMAGE_FIELDS, SOUND_FIELDS, VIDEO_FIELDS, PipelineCall

if TYPE_CHECKING:
    from omni_cli.backends.execution.copies import OutputCopy

# The argument of the call that reports steps; without one, calls of the scheduler's `step` are counted.
StepCallback = Literal["callback_on_step_end", "callback", "scheduler", "none"]
T = TypeVar("T", tuple[np.ndarray, ...], tuple[Frames, ...], np.ndarray)
# Called after each step with (steps done, total steps); may raise to end the call early.
OnStep = Callable[[int, int], None]


@dataclass
class _Marks:
    """Marks of one call, on the runner's clock."""

    start: object
    encoding: list[tuple[object, object]] = field(default_factory=list)
    vae_encoding: list[tuple[object, object]] = field(default_factory=list)
    denoising: object = None
    steps: list[object] = field(default_factory=list)
    end: object = None
    # The denoising steps and what follows the last, for a listener.
    ranges: Consecutive = field(default_factory=Consecutive)


@dataclass(frozen=True)
class PendingOutputs:
    """The result of one pipeline call, which the device may not have finished yet.

    There are images, sounds, videos or tensors; videos may have sounds. `notes` are those of the call.
    """

    requests: Sequence[DiffusionRequest]
    times: Callable[[], DiffusionTimes]
    images: PendingCopies | Sequence[np.ndarray] = ()
    sounds: PendingCopies | Sequence[np.ndarray] = ()
    videos: tuple[Frames, ...] = ()
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def ready(self) -> bool:
        """True if `get` would return immediately, and for videos.

        Their frames are copied when somebody takes them, which should happen before the next call needs the memory.
        """
        parts = (part for part in (self.images, self.sounds) if isinstance(part, PendingCopies))
        return bool(self.videos) or all(part.copy.ready() for part in parts)

    def get(self) -> list[DiffusionOutput]:
        """Return the output of each request, of which there are equally many, one after another.

        Waits for copies and times. Raises `BadOutputError` for NaN or infinite values.
        """
        with mark("wait for output copy"):
            images, sounds = (
                tuple(part.get() if isinstance(part, PendingCopies) else part) for part in (self.images, self.sounds)
            )
        num_requests = len(self.requests)
        count = min(map(len, self.tensors.values()), default=len(self.videos or sounds or images))
        if not count or count % num_requests or (self.videos and sounds and len(sounds) != count):
            raise BadOutputError(f"the pipeline made {count} outputs for {num_requests} requests")

        def share(index: int, outputs: T) -> T:
            each = len(outputs) // num_requests
            return outputs[index * each : (index + 1) * each]

        times, made = self.times(), []
        for index, request in enumerate(self.requests):
            parts = (share(index, images), share(index, sounds), share(index, self.videos))
            tensors = {name: share(index, rows) for name, rows in self.tensors.items()}
            made.append(DiffusionOutput(request.request_id, "stop", *parts, tensors, times, notes=self.notes))
        return made


class PipelineRunner:
    """Calls one pipeline, one call at a time.

    It adds three things to the pipeline while it lives, a cache in front of `encode_prompt`, a clock around the VAE's
    `encode` and a hook that records the denoiser's first call; `close` removes them.
    """

    def __init__(
        self,
        pipeline: Any,
        call: PipelineCall,
        clock: Clock,
        output_copy: OutputCopy,
        prompt_cache_bytes: int,
        step_caches: StepCaches,
        adapters: PipelineAdapters,
        *,
        moves_weights: bool = False,
    ) -> None:
        """`moves_weights` says that calls do, between devices, which keeps them from torch's inference mode."""
        import torch

        with_gradients = "enable_grad" in inspect.unwrap(type(pipeline).__call__).__code__.co_names
        # Launching takes the host 0.88 of its time under `no_grad`, which the pipelines set themselves.
        self._calling = nullcontext if moves_weights or with_gradients else torch.inference_mode
        self.adapters = adapters
        self.step_caches = step_caches
        self._pipeline = pipeline
        self._call = call
        self._clock = clock
        self._output_copy = output_copy
        self._marks: _Marks | None = None
        # Of the last call: until it has made a step, its inputs are to blame for an error.
        self.has_denoised = False
        self.makes = call.makes or "image"
        self.predicts = "prediction" in call.outputs
        self.output_type: OutputType = "pt"
        if (self.makes == "image" or self.makes == "video") and not self.predicts:
            self.output_type = "pil" if call.tensors_are_latents else output_type_for(pipeline, self.makes)
        self.step_callback = choose_step_callback(call.arguments, pipeline)
        self.prompt_cache: PromptCache | None = None
        if hasattr(pipeline, "encode_prompt"):
            self.prompt_cache = PromptCache(pipeline.encode_prompt, prompt_cache_bytes)
            pipeline.encode_prompt = self._encode_prompt
        self._vae: Any = getattr(pipeline, "vae", None)
        if hasattr(self._vae, "encode"):
            vae: Any = self._vae
            vae.encode = functools.partial(self._encode_with_vae, vae.encode)
        self._denoiser: Any = find_denoiser(pipeline)
        self._hook = None if self._denoiser is None else self._denoiser.register_forward_pre_hook(self._note_denoiser)
        self._attention = getattr(self._denoiser, "attn_processors", None)
        self._vae_dtype = getattr(self._vae, "dtype", None)
        self._is_cut = False

    def close(self) -> None:
        """Restore the pipeline and release it."""
        self.step_caches.close()
        if self.prompt_cache is not None:
            self.prompt_cache.clear()
            self.prompt_cache = None
            # Removes the attribute of the instance, which hid the method of the class.
            del self._pipeline.encode_prompt
        if self._vae is not None:
            vars(self._vae).pop("encode", None)
        if self._hook is not None:
            self._hook.remove()
        self._pipeline = self._vae = self._denoiser = self._attention = None

    def run(self, requests: Sequence[DiffusionRequest], on_step: OnStep) -> PendingOutputs:
        """Run one call for all requests, which are resolved and have equal batch keys; return their outputs.

        Exceptions of `on_step` and of the pipeline propagate, with the pipeline ready for its next call.
        """
        from omni_cli.backends.diffusers.scheduler_steps import scheduler_steps

        self.has_denoised = False
        if self._is_cut:
            self._restore()
        self._is_cut = True
        if self.adapters.use(requests[0].lora) and self.prompt_cache is not None:
            self.prompt_cache.clear()  # of a text encoder with another adapter
        arguments = self._arguments(requests)
        self.step_caches.start(requests[0].num_inference_steps)
        self._marks = marks = _Marks(self._clock.mark())
        note_step = self._step_noting(marks, requests[0], arguments, on_step)
        arguments |= callback_arguments(self.step_callback, self._call.arguments, note_step)
        note_scheduler = note_step if self.step_callback == "scheduler" else None
        try:
            with scheduler_steps(self._pipeline, note_scheduler), heard_messages() as messages, self._calling():
                output = self._pipeline(**arguments)
            self._is_cut = False
        finally:
            self._marks = None
            marks.ranges.close()
            if any(name.endswith("attention_kwargs") for name in arguments):
                self.adapters.use(None)  # their `scale` may leave an adapter at another weight, which its next use sets
            if hasattr(self._pipeline, "_current_timestep"):
                self._pipeline._current_timestep = None
        notes = notes_of_call(self._pipeline, requests[0], messages, self._call)
        pending = functools.partial(PendingOutputs, requests, functools.partial(self._times, marks), notes=notes)
        if self.makes == "image":
            return pending(images=self._pixels(first_field(output, IMAGE_FIELDS), marks))
        if self.makes == "audio":
            return pending(sounds=self._samples(first_field(output, AUDIO_FIELDS), marks))
        if self.makes == "tensor":
            tensors = {name: to_host(name, value) for name, value in output.items() if value is not None}
            marks.end = self._clock.mark()
            return pending(tensors=tensors)
        videos, sound = with_batch_axis(first_field(output, VIDEO_FIELDS), first_field(output, SOUND_FIELDS))
        sounds = () if sound is None else self._samples(sound, marks)
        marks.end = self._clock.mark()
        return pending(sounds=sounds, videos=tuple(Frames(frames, self._output_copy) for frames in videos))

    def _restore(self) -> None:
        """Put back what pipelines change for a call, and leave so if it is cut: attention, as for PAG, and a VAE's
        dtype."""
        if self._attention is not None:
            self._denoiser.set_attn_processor(dict(self._attention))
        if self._vae_dtype is not None and self._vae.dtype != self._vae_dtype:
            self._vae.to(self._vae_dtype)

    def _samples(self, audio: Any, marks: _Marks) -> PendingCopies:
        """Start the copy of audio to the host."""
        import torch

        audio = torch.as_tensor(audio)
        flat = audio.float().reshape(-1)
        marks.end = self._clock.mark()
        with mark("output copy"):
            return PendingCopies(self._output_copy.start(flat), functools.partial(to_samples, shape=tuple(audio.shape)))

    def _pixels(self, output: Any, marks: _Marks) -> PendingCopies | list[np.ndarray]:
        """Start the copy of images to the host."""
        import torch

        if isinstance(output, np.ndarray):
            output = torch.from_numpy(output).permute(0, 3, 1, 2)  # of a pipeline that converts images itself
        elif self.predicts:
            output = visualize(self._pipeline, output)
        elif isinstance(output, list) and all(isinstance(image, torch.Tensor) for image in output):
            output = torch.cat(output)
        if not isinstance(output, torch.Tensor):
            with mark("output copy"):
                images = pil_to_uint8(output)
            marks.end = self._clock.mark()
            return images
        flat = to_bytes(output)
        marks.end = self._clock.mark()
        with mark("output copy"):
            return PendingCopies(
                self._output_copy.start(flat), functools.partial(from_bytes, shape=tuple(output.shape))
            )

    def _arguments(self, requests: Sequence[DiffusionRequest]) -> dict[str, object]:
        """Build exactly the arguments of the plain call. The noise comes from the CPU, the same on every device."""
        import torch

        # Some pipelines also draw from the global generator, such as for the latents of a control image.
        # `torch.manual_seed` also prepares seeds for each kind of device that is not in use, in 0.2 ms.
        torch.default_generator.manual_seed(requests[0].seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(requests[0].seed)
        generators = [torch.Generator("cpu").manual_seed(request.seed) for request in requests]
        arguments = call_arguments(requests[0], self._call)
        if len(requests) == 1:
            arguments["generator"] = generators[0]
        else:
            arguments["generator"] = generators
            arguments["prompt"] = [request.prompt for request in requests]
            if requests[0].negative_prompt is not None:
                arguments["negative_prompt"] = [request.negative_prompt for request in requests]
        # What a mask was cropped for is pasted back into the image by Pillow.
        is_pasted = arguments.get("padding_mask_crop") is not None
        arguments["output_type"] = "pil" if is_pasted else self.output_type
        arguments |= {
            name: torch.tensor(value, device=self._pipeline.device)
            for name, value in requests[0].call.items()
            if self._call.check_name(name).needs_tensor and isinstance(value, int | float | list | tuple)
        }
        return {name: value for name, value in arguments.items() if name in self._call.arguments}

    def _step_noting(
        self, marks: _Marks, request: DiffusionRequest, arguments: Mapping[str, object], on_step: OnStep
    ) -> Callable[[], None]:
        defaults = {name: argument.default for name, argument in self._call.arguments.items()}
        windowed = windowed_steps(self._pipeline, {**defaults, **arguments})

        def note_step() -> None:
            self.has_denoised = True
            marks.steps.append(self._clock.mark())
            done = len(marks.steps)
            # Second-order schedulers call the denoiser more often than `num_inference_steps`.
            total = max(
                done, windowed or getattr(self._pipeline, "num_timesteps", None) or request.num_inference_steps or done
            )
            if done < total:
                marks.ranges.next("denoising step", done + 1)
            else:
                marks.ranges.next("vae decode")
            on_step(done, total)

        return note_step

    def _encode_prompt(self, *args: object, **kwargs: object) -> object:
        import torch

        assert self.prompt_cache is not None
        start = self._clock.mark()
        # Tensors of inference mode do not count their changes, which the cache looks at.
        with mark("text encode"), torch.inference_mode(False), torch.no_grad():
            result = self.prompt_cache(*args, **kwargs)
        if self._marks is not None:
            self._marks.encoding.append((start, self._clock.mark()))
        return result

    def _encode_with_vae(self, encode: Callable[..., object], *args: object, **kwargs: object) -> object:
        start = self._clock.mark()
        with mark("vae encode"):
            result = encode(*args, **kwargs)
        if self._marks is not None:
            self._marks.vae_encoding.append((start, self._clock.mark()))
        return result

    def _note_denoiser(self, _module: object, _args: object) -> None:
        if self._marks is not None and self._marks.denoising is None:
            self._marks.denoising = self._clock.mark()
            self._marks.ranges.next("denoising step", 1)

    def _times(self, marks: _Marks) -> DiffusionTimes:
        seconds = self._clock.seconds
        denoising = marks.start if marks.denoising is None else marks.denoising
        edges = [denoising, *marks.steps]
        vae_encode_s = sum(seconds(start, stop) for start, stop in marks.vae_encoding)
        return DiffusionTimes(
            text_encode_s=(
                sum(seconds(start, stop) for start, stop in marks.encoding)
                if self.prompt_cache is not None
                else max(0.0, seconds(marks.start, denoising) - vae_encode_s)
            ),
            vae_encode_s=vae_encode_s if marks.vae_encoding else None,
            denoise_step_s=tuple(seconds(a, b) for a, b in itertools.pairwise(edges)),
            vae_decode_s=seconds(marks.steps[-1], marks.end) if marks.steps else None,
            total_s=seconds(marks.start, marks.end),
        )


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


def windowed_steps(pipeline: Any, arguments: Mapping[str, Any]) -> int | None:
    """Return the steps of a call that denoises a video in windows, each in stages; None for other calls."""
    if "history_sizes" not in arguments:
        return None
    num_frames = (arguments["num_latent_frames_per_chunk"] - 1) * pipeline.vae_scale_factor_temporal + 1
    stages = arguments.get("pyramid_num_inference_steps_list") or [arguments["num_inference_steps"]]
    windows: int = max(1, math.ceil(arguments["num_frames"] / num_frames))
    return windows * int(sum(stages))
