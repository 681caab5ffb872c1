"""Qwen2.5-Omni's token2wav on a vLLM engine: whole waveforms, or chunk by chunk while codes still arrive."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec
import torch
from transformers import AutoConfig
from vllm import PoolingParams
from vllm.outputs import PoolingRequestOutput
from vllm.platforms import current_platform

from omni_cli.errors import InputError, StageError
from omni_cli.execution.denoiser import require_cuda
from omni_cli.models.qwen2_5_omni.chunks import Chunk, Chunker, ChunkSizes
from omni_cli.models.qwen2_5_omni.connectors import spoken_codes
from omni_cli.models.qwen2_5_omni.family import TOKEN2WAV
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.speakers import load_speakers, pick_speaker
from omni_cli.stage.messages import (
    AppendInput,
    Array,
    Audio,
    Progress,
    Report,
    RequestDone,
    StageRequest,
    WaveformChunk,
)
from omni_cli.stage.payloads import encode_additional_information, integers_of
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION
from omni_cli.vllm_integration.diffusion_entry import NoOutput
from omni_cli.vllm_integration.stage import ActiveRequest, VllmStage

SAMPLE_RATE = 24_000
CODES_PER_SECOND = 50
# A chunk comes before others' first ones if the audio before it ends within this time.
URGENT_S = 0.5
NO_CODES = "the talker ended before it produced a codec token"


class SpeechRank(IntEnum):
    """Which requests come first; somebody waits for a stream's first sound, and for all of a whole request anyway."""

    URGENT = 0
    FIRST = 1
    WHOLE = 2
    LATER = 3


@dataclass
class SpeechStream:
    """A request whose audio is made in chunks, each of which is a separate request in the engine."""

    request: StageRequest
    chunker: Chunker
    added_s: float
    has_all_codes: bool = False
    num_chunks: int = 0
    num_made: int = 0
    first_audio_s: float | None = None
    denoise_step_s: list[float] = field(default_factory=list)
    vocoder_s: float = 0.0
    chunk_times_s: list[tuple[float, float, float]] = field(default_factory=list)
    # Finished chunks that wait for one before them, by number, with the times of each.
    early: dict[int, tuple[Report, tuple[float, float, float]]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.has_all_codes and self.num_made == self.num_chunks

    def chunk_id(self, number: int) -> str:
        """Return an id that no other request has."""
        return f"{self.request.request_id}\0{number}"


class Token2WavStage(VllmStage):
    """Converts codec tokens to a waveform."""

    can_pad = True

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, Token2WavConfig)
        execution = spec.stage.execution
        if execution == "cudagraph":
            require_cuda(stage=spec.stage.name, device=current_platform.device_type)
        super().__init__(spec, emit)
        self.talker_config = AutoConfig.from_pretrained(spec.model).talker_config
        self.speakers = load_speakers(spec.model)
        self.num_codes = self.engine.vllm_config.model_config.hf_config.token2wav_config.dit_config.num_embeds
        self._streams: dict[str, SpeechStream] = {}
        (model,) = self.engine.collective_rpc("get_model")
        self._chunk_sizes = chunk_sizes(spec.stage, model.codes_per_block)
        self.denoiser = model.prepare(spec.stage)
        self._synthesizer = model.synthesizer
        if execution != "eager":
            model.warm_up(spec.max_concurrency)
        self._batch = model.batch
        self._batch.precedence = self._precedence

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            "hf_overrides": {"architectures": [TOKEN2WAV]},
            "scheduler_cls": "omni_cli.vllm_integration.stepwise_scheduler.StepwiseScheduler",
            # The reference runs token2wav in float32 with any dtype of the other stages.
            "dtype": "float32",
        }

    @property
    def effective(self) -> dict[str, object]:
        stage = self.spec.stage
        assert isinstance(stage, Token2WavConfig)
        modes = {"execution": self.denoiser.execution, "stream": stage.streams, **self._arithmetic}
        # transformers' vocoder copies its waveform to the host synchronously.
        return {**super().effective, **modes, "output_copy": "sync"}

    @property
    def _arithmetic(self) -> dict[str, str]:
        return {"batching": self._synthesizer.batching, "precision": self._synthesizer.precision}

    @property
    def settings(self) -> dict[str, object]:
        return {
            **super().settings,
            **self._arithmetic,
            "execution": self.denoiser.execution,
            "stream_first_chunk_codes": self._chunk_sizes.first,
            "stream_chunk_codes": self._chunk_sizes.chunk,
            "stream_context_codes": self._chunk_sizes.context,
            "stream_look_ahead_codes": self._chunk_sizes.look_ahead,
        }

    @property
    def engagement(self) -> dict[str, float]:
        return {**super().engagement, **self.denoiser.counters.as_dict()}

    def _setting(self, request: StageRequest, name: str, default: float) -> float:
        stage = self.spec.stage
        assert isinstance(stage, Token2WavConfig)
        given = request.diffusion.get(name, getattr(stage, name))
        return default if given is None else given

    def add(self, request: StageRequest) -> None:
        if not request.streams:
            super().add(request)
            return
        stream = SpeechStream(request, Chunker(self._chunk_sizes), time.perf_counter())
        self._streams[request.request_id] = stream
        self._feed(stream, request.handoff, is_last=not request.more_follows)

    def append(self, command: AppendInput) -> None:
        stream = self._streams.get(command.request_id)
        if stream is not None:
            self._feed(stream, command.handoff, is_last=command.is_last)

    def _feed(self, stream: SpeechStream, handoff: bytes | None, *, is_last: bool) -> None:
        """Send the engine the chunks that more codes make possible."""
        chunks = stream.chunker.add(self._codes(handoff), is_last=is_last)
        if is_last and not stream.chunker.codes:
            raise InputError(NO_CODES)
        stream.has_all_codes = is_last
        for chunk in chunks:
            request = msgspec.structs.replace(stream.request, request_id=stream.chunk_id(stream.num_chunks))
            context = {"stream": stream, "chunk": chunk, "number": stream.num_chunks}
            stream.num_chunks += 1
            self.admit(ActiveRequest(request, time.perf_counter(), context=context))

    def _codes(self, handoff: bytes | None) -> list[int]:
        token_ids = integers_of(self.decode_input(handoff), "codec_token_ids")
        return spoken_codes(token_ids, config=self.talker_config, num_codes=self.num_codes)

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], PoolingParams]:
        request = active.request
        num_steps = int(self._setting(request, "num_inference_steps", 10))
        if num_steps < 2:
            raise InputError(f"num_inference_steps is {num_steps}; token2wav needs at least 2")
        active.context["num_inference_steps"] = num_steps
        settings = {
            "speaker": [pick_speaker(self.speakers, request.speaker)],
            "seed": [request.seed],
            "num_inference_steps": [num_steps],
            "guidance_scale": [float(self._setting(request, "guidance_scale", 0.5))],
            "sway_coefficient": [float(self._setting(request, "sway_coefficient", -1.0))],
        }
        chunk: Chunk | None = active.context.get("chunk")
        codes: Sequence[int] = self._codes(request.handoff) if chunk is None else chunk.codes
        if not codes:
            raise InputError(NO_CODES)
        active.context["num_codes"] = len(codes)
        if chunk is not None:
            settings["chunk"] = [chunk.codes_start, chunk.start, chunk.end]
            if self._synthesizer.carries:
                settings["stream"] = [self.get_request_id(active)]
                if chunk.continues_at is not None:
                    settings["continues_at"] = [chunk.continues_at]
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(settings, self.payload_limits)}
        return {"prompt_token_ids": list(codes)}, PoolingParams(task="plugin", extra_kwargs=extra)

    def step(self) -> list[Report]:
        reports = super().step()
        for each in self._batch.stepped:
            active = self.by_engine_id(each.request_id)
            if active is not None and each.done == 1:
                active.context["began_s"] = time.perf_counter()
            if active is not None and "stream" not in active.context:
                reports.append(Progress(active.request.request_id, each.done, each.total, "step"))
        return reports

    def _precedence(self, engine_id: str) -> tuple[float, ...]:
        """Order requests by rank, then by time."""
        active = self.by_engine_id(engine_id)
        if active is None:
            return (SpeechRank.LATER,)
        stream: SpeechStream | None = active.context.get("stream")
        if stream is None:
            return (SpeechRank.WHOLE, active.added_s)
        start_s = active.context["chunk"].start / CODES_PER_SECOND
        return precedence(start_s, active.added_s, stream.first_audio_s, now_s=time.perf_counter())

    def get_request_id(self, active: ActiveRequest) -> str:
        stream: SpeechStream | None = active.context.get("stream")
        return super().get_request_id(active) if stream is None else stream.request.request_id

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        running_ids = [request_id]
        self._batch.end_stream(request_id)
        if stream is not None:
            running_ids += [stream.chunk_id(number) for number in range(stream.num_made, stream.num_chunks)]
        for running_id in running_ids:
            super().abort(running_id)

    def _check_waveform(self, made: torch.Tensor | NoOutput) -> None:
        """Raise `StageError` unless this is a waveform (num_samples,) of finite numbers."""
        if isinstance(made, NoOutput):
            raise StageError(made.reason, stage=self.spec.stage.name)
        if made.dim() != 1 or not made.numel() or not made.is_floating_point():
            what = f"{tuple(made.shape)} of {str(made.dtype).removeprefix('torch.')}"
            raise StageError(f"the model made {what}, which is not a waveform", stage=self.spec.stage.name)
        self.check_numbers(made, "samples")

    def output(self, active: ActiveRequest, output: PoolingRequestOutput) -> list[Report]:
        waveform = output.outputs.data
        self._check_waveform(waveform)
        *steps, vocoder_s = self._batch.seconds(active.engine_id)
        stream: SpeechStream | None = active.context.get("stream")
        if stream is None:
            trace = self._trace(active, active.added_s, active.context["num_codes"], steps, vocoder_s)
            return [RequestDone(active.request.request_id, trace, audio=_audio(waveform))]
        stream.denoise_step_s += steps
        stream.vocoder_s += vocoder_s
        begin_s, added_s, began_s = stream.added_s, active.added_s, active.context["began_s"]
        times = (added_s - begin_s, began_s - begin_s, time.perf_counter() - begin_s)
        stream.early[active.context["number"]] = WaveformChunk(stream.request.request_id, _audio(waveform)), times
        reports: list[Report] = []
        while stream.num_made in stream.early:
            report, since_added = stream.early.pop(stream.num_made)
            reports.append(report)
            stream.chunk_times_s.append(since_added)
            stream.num_made += 1
            stream.first_audio_s = stream.first_audio_s or time.perf_counter()
        if stream.is_done:
            del self._streams[stream.request.request_id]
            self._batch.end_stream(stream.request.request_id)
            num_codes = len(stream.chunker.codes)
            trace = self._trace(active, stream.added_s, num_codes, stream.denoise_step_s, stream.vocoder_s)
            chunks = {"num_chunks": stream.num_chunks, "chunk_times_s": stream.chunk_times_s}
            reports.append(RequestDone(stream.request.request_id, {**trace, **chunks}))
        return reports

    def _trace(
        self, active: ActiveRequest, added_s: float, num_codes: int, steps: list[float], vocoder_s: float
    ) -> dict[str, object]:
        return {
            "latency_s": time.perf_counter() - added_s,
            "num_input_tokens": num_codes,
            "num_inference_steps": active.context["num_inference_steps"],
            "denoise_step_s": steps,
            "vocoder_s": vocoder_s,
        }


def precedence(
    start_s: float, added_s: float, first_audio_s: float | None, *, now_s: float
) -> tuple[SpeechRank, float]:
    """Order chunks that begin `start_s` into their stream, whose first audio was there at `first_audio_s`."""
    if start_s == 0:
        return SpeechRank.FIRST, added_s
    if first_audio_s is None:
        return SpeechRank.LATER, added_s
    underrun_s = first_audio_s + start_s
    return SpeechRank.URGENT if underrun_s - now_s < URGENT_S else SpeechRank.LATER, underrun_s


def chunk_sizes(stage: Token2WavConfig, codes_per_block: int) -> ChunkSizes:
    """Return the stage's chunk sizes, `ChunkSizes` by default; raise `StageError` unless all are whole blocks.

    With `batching: padded` chunks carry on what the next one needs, so that it needs no context by default.
    """
    keys = {
        "first": "stream_first_chunk_codes",
        "chunk": "stream_chunk_codes",
        "context": "stream_context_codes",
        "look_ahead": "stream_look_ahead_codes",
    }
    given = {name: getattr(stage, key) for name, key in keys.items()}
    for name, size in given.items():
        if size is not None and size % codes_per_block:
            fitting = max(1, round(size / codes_per_block)) * codes_per_block
            raise StageError(
                f"`{keys[name]}` is {size}, and token2wav attends to blocks of {codes_per_block} codes",
                stage=stage.name,
                hint=f"--set {stage.name}.{keys[name]}={fitting}",
            )
    default = {"context": 0} if stage.batching == "padded" else {}
    sizes = ChunkSizes(**{**default, **{name: size for name, size in given.items() if size is not None}})
    # Audio that is held back needs the codes before the next chunk, carried on or computed again.
    return sizes if sizes.context or stage.batching == "padded" else dataclasses.replace(sizes, held_back=0)


def _audio(waveform: torch.Tensor) -> Audio:
    return Audio(Array.of(waveform.numpy()), SAMPLE_RATE)
