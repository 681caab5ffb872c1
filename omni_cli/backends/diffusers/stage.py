"""A stage over a diffusers pipeline, from prompts and media to images, audio, videos or tensors. Never imports vLLM."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from omni_cli.backends.diffusers.arguments import with_instances
from omni_cli.backends.diffusers.batch_run import DiffusionScheduler
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.messages import describe_failure, differences
from omni_cli.backends.diffusers.outputs import Frames, get_sample_rate
from omni_cli.backends.diffusers.parallel import Rank, Ranks
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError, OmniError
from omni_cli.requests.contents import CallFile, changed_items, get_items
from omni_cli.requests.encoding import resample
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, VideoOutput
from omni_cli.requests.pipeline_call import Medium, PipelineCall
from omni_cli.requests.video_encoding import encode_video, prepare_encoding
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    Alive,
    AppendInput,
    Failure,
    Progress,
    Report,
    RequestDone,
    SleepStage,
    WakeStage,
)
from omni_cli.stage.protocol import StageSpec

if TYPE_CHECKING:
    import torch

DEFAULT_MAX_NUM_SEQS = 4


@dataclass(frozen=True)
class _Waiting:
    """A request without output yet: its arrival in seconds, the resolved request, and the content of its reports.

    `asked` are the arguments that it arrived with.
    """

    added_s: float
    request: DiffusionRequest
    asked: Mapping[str, Any]
    streams: bool
    wants_frames: bool


class DiffusersStage:
    """The executor and its scheduler; one step is one batch."""

    unused_parts: ClassVar[tuple[str, ...]] = ()
    """Parts of the pipeline whose work another stage does; they are not loaded."""
    voices: tuple[str, ...] = ()
    media: tuple[str, ...] | None = None

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None], rank: Rank | None = None) -> None:
        """Load the stage. `rank` is that of this process, if another one started it as part of its own stage."""
        assert isinstance(spec.stage, DiffusionStageConfig)
        self.config = spec.stage
        self.emit = emit
        self.leads = rank is None
        self.ranks: Ranks | None = None
        if self.leads and spec.stage.num_ranks > 1:
            self.ranks = Ranks(spec, type(self), emit)
            rank = self.ranks.rank
        self.executor = DiffusersPipelineExecutor(
            spec.stage,
            spec.model,
            spec.dtype,
            trust_remote_code=spec.trust_remote_code,
            unused_parts=self.unused_parts,
            rank=rank,
        )
        if self.executor.makes == "video":
            prepare_encoding()
        self.executor.compile_or_warm_up_model()
        self.scheduler = DiffusionScheduler(spec.stage.max_num_seqs or DEFAULT_MAX_NUM_SEQS)
        self.waiting: dict[str, _Waiting] = {}
        # Added by the thread that reads commands, and removed by `abort`, which always follows.
        self.unwanted: set[str] = set()

    @property
    def effective(self) -> dict[str, object]:
        return dict(self.executor.effective)

    @property
    def settings(self) -> dict[str, object]:
        effective = self.executor.effective
        read_back = {name: effective[name] for name in ("batching", "execution", "output_copy")}
        return {**read_back, "max_num_seqs": self.scheduler.max_num_seqs}

    @property
    def execution_counters(self) -> dict[str, float]:
        return self.executor.execution_counters

    def add(self, request: GenerateRequest) -> None:
        unresolved = replace(self.diffusion_request(request), lora=self.config.choose_adapter(request.lora))
        resolved = self.executor.resolve(unresolved)
        self.waiting[request.request_id] = _Waiting(
            time.perf_counter(),
            resolved,
            request.diffusion,
            bool(request.speech.stream_audio),
            request.stage.wants_frames,
        )
        self.scheduler.add_request(resolved)
        if self.ranks is not None:
            self.ranks.send(AddRequest(request))

    def diffusion_request(self, request: GenerateRequest) -> DiffusionRequest:
        """Return the arguments of the pipeline's call."""
        executor = self.executor
        conditions = get_conditions(request, executor.call, executor.pipeline, executor.device)
        return DiffusionRequest.from_arguments(
            request.request_id, request.prompt, request.seed, request.diffusion, conditions
        )

    def sleep(self, level: int) -> bool:
        if self.ranks is not None:
            self.ranks.send(SleepStage(level))
        self.executor.sleep(level)
        return self.executor.is_sleeping

    def wake_up(self, tags: Sequence[str] | None) -> bool:
        if self.ranks is not None:
            self.ranks.send(WakeStage(None if tags is None else tuple(tags)))
        self.executor.wake_up(tags)
        return self.executor.is_sleeping

    def warm_up(self) -> None:
        """Do nothing: the shortest request is a whole image."""

    def append(self, command: AppendInput) -> None:
        raise NotImplementedError("a diffusers pipeline takes its prompt as a whole")

    def abort(self, request_id: str) -> None:
        self.unwanted.discard(request_id)
        self.scheduler.finish_requests([request_id])
        self.waiting.pop(request_id, None)
        if self.ranks is not None:
            self.ranks.send(AbortRequest(request_id))

    def interrupt(self, request_id: str) -> None:
        self.unwanted.add(request_id)
        self.executor.abort_requests([request_id])

    def has_work(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def step(self) -> list[Report]:
        batch = self.scheduler.schedule()
        if batch is None:
            return []
        if self.ranks is not None:
            self.ranks.start_step()
        last: list[Report] = []
        num_running = len(batch)

        def finish(output: DiffusionOutput) -> None:
            nonlocal num_running
            num_running -= 1
            for report in self._report(output):
                # A request does not wait for those that run after it.
                (self.emit if num_running else last.append)(report)

        outputs = self.executor.execute_model(batch, on_step=self._on_step, on_output=finish)
        if self.ranks is not None:
            self.ranks.finish_step(failed=any(output.error is not None for output in outputs))
        return last

    def _on_step(self, request_id: str, done: int, total: int) -> None:
        if request_id in self.unwanted:
            # Interrupted before its batch reached the executor, which ignored the abort of an unknown request.
            self.executor.abort_requests([request_id])
        else:
            self.emit(Progress(request_id, done, total, "step"))

    def _report(self, output: DiffusionOutput) -> list[Report]:
        waiting = self.waiting.pop(output.request_id)
        if output.finish_reason == "abort":
            return []
        if output.error is not None:
            return [Failure.of(output.error, request_id=output.request_id)]
        if not self.leads:
            return []
        assert output.times is not None
        began_s = time.perf_counter()
        try:
            videos = self._encode_videos(output, waiting)
        except Exception as raised:  # noqa: BLE001 - whatever it is becomes the request's error
            if not isinstance(raised, OmniError):
                raised = describe_failure(raised, self.executor.config, [waiting.request])
            return [Failure.of(raised, request_id=output.request_id)]
        ended_s = time.perf_counter()
        call, rate = self.executor.call, self.executor.sample_rate
        changes = differences(waiting.request, waiting.asked, output, call, rate)
        notes = tuple(dict.fromkeys((*waiting.request.notes, *output.notes, *changes)))
        trace = {
            "latency_s": ended_s - waiting.added_s,
            "num_inference_steps": waiting.request.num_inference_steps,
            **{part: seconds for part, seconds in vars(output.times).items() if part != "total_s"},
            "encode_s": ended_s - began_s if videos else None,
        }
        if videos:
            return [RequestDone(output.request_id, trace, videos=videos, notes=notes)]
        if output.sounds:
            assert self.executor.sample_rate is not None
            sounds = tuple(AudioOutput(samples, self.executor.sample_rate) for samples in output.sounds)
            if waiting.streams and len(sounds) == 1:
                chunk = AudioChunk(output.request_id, sounds[0].samples, sounds[0].sample_rate)
                return [chunk, RequestDone(output.request_id, trace, notes=notes)]
            return [RequestDone(output.request_id, trace, audio=sounds[0], more_audio=sounds[1:], notes=notes)]
        images, tensors = tuple(output.images), dict(output.tensors)
        return [RequestDone(output.request_id, trace, images=images, tensors=tensors, notes=notes)]

    def _encode_videos(self, output: DiffusionOutput, waiting: _Waiting) -> tuple[VideoOutput, ...]:
        """Return the videos of a request as files."""
        rate = self.executor.sample_rate or 0
        return tuple(
            self._video_file(frames, None if samples is None else AudioOutput(samples, rate), waiting)
            for frames, samples in itertools.zip_longest(output.videos, output.sounds if output.videos else ())
        )

    def _video_file(self, frames: Frames, sound: AudioOutput | None, waiting: _Waiting) -> VideoOutput:
        """Encode a video, from frames that come from the device piece by piece."""
        fps = waiting.request.fps
        assert isinstance(fps, Fraction)
        kept: list[np.ndarray] = []

        def pieces() -> Iterator[Sequence[np.ndarray]]:
            for piece in frames.pieces():
                self.emit(Alive())
                if waiting.wants_frames:
                    kept.extend(piece)
                yield piece

        encoded = encode_video(pieces(), len(frames), fps, sound)
        return replace(encoded, frames=np.stack(kept) if kept else None)

    def close(self, *, process_ends: bool = False) -> None:
        if self.ranks is not None:
            self.ranks.close()
        if not process_ends:
            self.executor.shutdown()


def get_conditions(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    """Return a request's media and files as arguments of the call, tensors on `device`."""
    files = {**_media_arguments(request, call, pipeline, device), **_call_files(request, call, pipeline, device)}
    return with_instances(files, call)


def get_media(request: GenerateRequest) -> dict[Medium, list[object]]:
    """Return the request's images and videos as Pillow images."""
    from PIL import Image

    images: dict[Medium, tuple[np.ndarray, ...]] = {
        "image": request.media.images,
        "control_image": request.media.control_images,
    }
    media: dict[Medium, list[object]] = {
        medium: [Image.fromarray(array) for array in arrays] for medium, arrays in images.items() if arrays
    }
    if request.media.videos:
        media["video"] = [[Image.fromarray(frame) for frame in video.frames] for video in request.media.videos]
    if request.media.mask is not None:
        media["mask"] = [Image.fromarray(request.media.mask).convert("L")]
    return media


def waveform_for(pipeline: Any, samples: np.ndarray, sample_rate: int, device: str) -> torch.Tensor:
    """Return a request's audio (num_samples,) or (num_samples, channels) as pipelines take it.

    That is (1, channels, num_samples) on `device`, at the pipeline's rate and in its VAE's type, with as many channels
    as that has. Raises `InputError` if the pipeline does not say its rate.
    """
    import torch

    target = get_sample_rate(pipeline)
    if target is None:
        raise InputError(f"{type(pipeline).__name__} does not say the sample rate of the audio that it takes")
    samples = resample(samples, sample_rate, target)
    rows = samples.reshape(len(samples), -1).T
    channels = getattr(pipeline.vae.config, "audio_channels", len(rows))
    if len(rows) != channels:
        rows = rows.mean(axis=0, keepdims=True).repeat(channels, axis=0)
    return torch.from_numpy(rows.copy())[None].to(device, pipeline.vae.dtype)


def _media_arguments(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    media = get_media(request)
    if not request.media.audio:
        return call.media_arguments(media)
    media["audio"] = [waveform_for(pipeline, samples, rate, device) for samples, rate in request.media.audio]
    rate = {"initial_audio_sampling_rate": get_sample_rate(pipeline)}
    return {**call.media_arguments(media), **{name: rate[name] for name in rate if name in call.arguments}}


def _call_files(request: GenerateRequest, call: PipelineCall, pipeline: Any, device: str) -> dict[str, object]:
    """Return values with files: Pillow images, also for frames, tensors on the device, and references."""
    arguments: dict[str, object] = {}
    for name, value in request.media.call_files.items():
        argument = call.check_name(name)
        if argument.file_kind == "media":
            arguments[name] = [pipeline.reference(name, file) for file in get_items(value)]
            continue
        read = changed_items(value, functools.partial(_file_value, device))
        arguments[name] = call.check_value(name, read)
    return arguments


def _file_value(device: str, file: CallFile) -> object:
    if file.kind in ("image", "video"):
        from PIL import Image

        if file.kind == "image":
            return Image.fromarray(file.array)
        return [Image.fromarray(frame) for frame in file.array]
    import torch

    return torch.from_numpy(file.array.copy()).to(device)
