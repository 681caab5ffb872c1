"""Qwen2.5-Omni's token2wav on a vLLM engine: whole waveforms, or chunk by chunk while codes still arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from transformers import AutoConfig
from vllm import PoolingParams
from vllm.outputs import PoolingRequestOutput
from vllm.platforms import current_platform

from omni_cli.backends.execution.modes import require_cuda
from omni_cli.backends.vllm.outputs import NoOutput
from omni_cli.backends.vllm.stage import ActiveRequest, VllmStage
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.qwen2_5_omni.connectors import load_speakers, spoken_codes
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.request import Chunk, Chunker, ChunkSizes
from omni_cli.models.voices import pick_speaker
from omni_cli.requests.contents import SpeechOptions, StageIO
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest
from omni_cli.stage.messages import AppendInput, Progress, Report, RequestDone
from omni_cli.stage.payloads import encode_additional_information, get_integers
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION

SAMPLE_RATE = 24_000
CODES_PER_SECOND = 50
# Two seconds of sound, which are several blocks of the DiT's attention, and several chunks of a stream.
WARM_UP_CODES = 100
# A chunk comes before others' first ones if the audio before it ends within this time.
URGENT_S = 0.5
# Of `ChunkSizes`, those that the profile has keys for.
_SIZES = ("first_chunk", "chunk", "context", "look_ahead")
NO_CODES = "the talker ended before it produced a codec token"


class SpeechPriority(IntEnum):
    """Priorities, the highest first: a listener waits for a stream's first sound, and for all of a whole request."""

    URGENT = 0
    FIRST = 1
    WHOLE = 2
    LATER = 3


@dataclass
class SpeechStream:
    """A request whose audio is made in chunks, each of which is a separate request in the engine.

    `chunk_times_s` has the seconds from the stream's start to a chunk's addition, first step and end, by chunk.
    """

    request: GenerateRequest
    chunker: Chunker
    added_s: float
    has_all_codes: bool = False
    num_chunks: int = 0
    num_sent: int = 0
    first_audio_s: float | None = None
    denoise_step_s: list[float] = field(default_factory=list)
    vocoder_s: float = 0.0
    chunk_times_s: list[tuple[float, float, float]] = field(default_factory=list)
    # Finished chunks that wait for one before them, by number, with their times.
    early: dict[int, tuple[Report, tuple[float, float, float]]] = field(default_factory=dict)

    def chunk_id(self, number: int) -> str:
        """Return the id of a chunk's request in the engine; no other request has it."""
        return f"{self.request.request_id}\0{number}"


class Token2WavStage(VllmStage):
    """Converts codec tokens to a waveform."""

    can_pad = True

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, Token2WavConfig)
        self.stage = spec.stage
        if spec.stage.execution == "cudagraph":
            require_cuda(stage=spec.stage.name, device=current_platform.device_type)
        super().__init__(spec, emit)
        self.talker_config = AutoConfig.from_pretrained(spec.model).talker_config
        self.speakers = list(load_speakers(spec.model))
        self.num_codes = self.engine.vllm_config.model_config.hf_config.token2wav_config.dit_config.num_embeds
        self._streams: dict[str, SpeechStream] = {}
        (model,) = self.engine.collective_rpc("get_model")
        self._chunk_sizes = chunk_sizes(spec.stage, model.codes_per_block)
        self.execution_mode = model.prepare(spec.stage)
        self._synthesizer = model.synthesizer
        model.capture_ahead(WARM_UP_CODES, spec.max_concurrency)
        self._scheduler = model.scheduler
        self._scheduler.get_order = self._get_order

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            "scheduler_cls": "omni_cli.backends.vllm.schedulers.StepwiseScheduler",
            # The reference runs token2wav in float32 with any dtype of the other stages.
            "dtype": "float32",
        }

    @property
    def effective(self) -> dict[str, object]:
        modes = {"execution": self.execution_mode.execution, "stream": self.stage.streams, **self._arithmetic}
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
            "execution": self.execution_mode.execution,
            **{f"stream_{name}_codes": getattr(self._chunk_sizes, name) for name in _SIZES},
        }

    @property
    def execution_counters(self) -> dict[str, float]:
        return {**super().execution_counters, **self.execution_mode.counters.as_dict()}

    def _setting(self, request: GenerateRequest, name: str, default: float) -> float:
        value = request.diffusion.get(name, getattr(self.stage, name))
        return default if value is None else value

    def warm_up(self) -> None:
        super().warm_up()
        if current_platform.is_cpu() and self.execution_mode.execution != "eager":
            self.run_warm_up()

    def warm_up_batches(self) -> Iterable[Sequence[GenerateRequest]]:
        codes = encode_additional_information({"codec_token_ids": [0] * WARM_UP_CODES})
        for streams in (False, True):
            yield [GenerateRequest("", stage=StageIO(input=codes), speech=SpeechOptions(stream_audio=streams))]

    def add(self, request: GenerateRequest) -> None:
        if not request.speech.stream_audio:
            super().add(request)
            return
        stream = SpeechStream(request, Chunker(self._chunk_sizes), time.perf_counter())
        self._streams[request.request_id] = stream
        self._feed(stream, request.stage.input, is_last=not request.stage.more_follows)

    def append(self, command: AppendInput) -> None:
        stream = self._streams.get(command.request_id)
        if stream is not None:
            self._feed(stream, command.stage_output, is_last=command.is_last)

    def _feed(self, stream: SpeechStream, stage_output: bytes | None, *, is_last: bool) -> None:
        """Send the engine the chunks that more codes make possible."""
        chunks = stream.chunker.add(self._codes(stage_output), is_last=is_last)
        if is_last and not stream.chunker.codes:
            raise InputError(NO_CODES)
        stream.has_all_codes = is_last
        for chunk in chunks:
            request = replace(stream.request, request_id=stream.chunk_id(stream.num_chunks))
            context = {"stream": stream, "chunk": chunk, "number": stream.num_chunks}
            stream.num_chunks += 1
            self.admit(ActiveRequest(request, time.perf_counter(), context=context))

    def _codes(self, stage_output: bytes | None) -> list[int]:
        token_ids = get_integers(self.decode_input(stage_output), "codec_token_ids")
        return spoken_codes(token_ids, config=self.talker_config, num_codes=self.num_codes)

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], PoolingParams]:
        request = active.request
        num_steps = int(self._setting(request, "num_inference_steps", 10))
        if num_steps < 2:
            raise InputError(f"num_inference_steps is {num_steps}; token2wav needs at least 2")
        active.context["num_inference_steps"] = num_steps
        settings = {
            "speaker": [pick_speaker(self.speakers, request.speech.speaker, default=None)],
            "seed": [request.seed],
            "num_inference_steps": [num_steps],
            "guidance_scale": [float(self._setting(request, "guidance_scale", 0.5))],
            "sway_coefficient": [float(self._setting(request, "sway_coefficient", -1.0))],
        }
        chunk: Chunk | None = active.context.get("chunk")
        codes: Sequence[int] = self._codes(request.stage.input) if chunk is None else chunk.codes
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
        for engine_id, num_done, num_steps in self._scheduler.finished_steps:
            active = self.by_engine_id(engine_id)
            if active is not None and num_done == 1:
                active.context["began_s"] = time.perf_counter()
            if active is not None and "stream" not in active.context:
                reports.append(Progress(active.request.request_id, num_done, num_steps, "step"))
        return reports

    def _get_order(self, engine_id: str) -> tuple[float, ...]:
        """Return the order of a request: its priority, then a time."""
        active = self.by_engine_id(engine_id)
        if active is None:
            return (SpeechPriority.LATER,)
        stream: SpeechStream | None = active.context.get("stream")
        if stream is None:
            return (SpeechPriority.WHOLE, active.added_s)
        start_s = active.context["chunk"].start / CODES_PER_SECOND
        return get_chunk_order(start_s, active.added_s, stream.first_audio_s, now_s=time.perf_counter())

    def get_request_id(self, active: ActiveRequest) -> str:
        stream: SpeechStream | None = active.context.get("stream")
        return super().get_request_id(active) if stream is None else stream.request.request_id

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        running_ids = [request_id]
        self._scheduler.end_stream(request_id)
        if stream is not None:
            running_ids += [stream.chunk_id(number) for number in range(stream.num_sent, stream.num_chunks)]
        for running_id in running_ids:
            super().abort(running_id)

    def _check_waveform(self, waveform: torch.Tensor | NoOutput) -> None:
        """Raise `StageError` unless this is a waveform (num_samples,) of finite numbers."""
        if isinstance(waveform, NoOutput):
            raise StageError(waveform.reason, stage=self.spec.stage.name)
        if waveform.dim() != 1 or not waveform.numel() or not waveform.is_floating_point():
            what = f"{tuple(waveform.shape)} of {str(waveform.dtype).removeprefix('torch.')}"
            raise StageError(f"the model made {what}, which is not a waveform", stage=self.spec.stage.name)
        self.check_numbers(waveform, "samples")

    def output(self, active: ActiveRequest, output: PoolingRequestOutput) -> list[Report]:
        waveform = output.outputs.data
        self._check_waveform(waveform)
        *steps, vocoder_s = self._scheduler.seconds(active.engine_id)
        stream: SpeechStream | None = active.context.get("stream")
        if stream is None:
            trace = self._trace(active, active.added_s, active.context["num_codes"], steps, vocoder_s)
            return [RequestDone(active.request.request_id, trace, audio=AudioOutput(waveform.numpy(), SAMPLE_RATE))]
        stream.denoise_step_s += steps
        stream.vocoder_s += vocoder_s
        begin_s, added_s, began_s = stream.added_s, active.added_s, active.context["began_s"]
        times = (added_s - begin_s, began_s - begin_s, time.perf_counter() - begin_s)
        chunk = AudioChunk(stream.request.request_id, waveform.numpy(), SAMPLE_RATE)
        stream.early[active.context["number"]] = chunk, times
        reports: list[Report] = []
        while stream.num_sent in stream.early:
            report, chunk_times = stream.early.pop(stream.num_sent)
            reports.append(report)
            stream.chunk_times_s.append(chunk_times)
            stream.num_sent += 1
            stream.first_audio_s = stream.first_audio_s or time.perf_counter()
        if stream.has_all_codes and stream.num_sent == stream.num_chunks:
            del self._streams[stream.request.request_id]
            self._scheduler.end_stream(stream.request.request_id)
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


def get_chunk_order(
    start_s: float, added_s: float, first_audio_s: float | None, *, now_s: float
) -> tuple[SpeechPriority, float]:
    """Return the order of a chunk `start_s` into its stream, whose first audio was there at `first_audio_s`."""
    if start_s == 0:
        return SpeechPriority.FIRST, added_s
    if first_audio_s is None:
        return SpeechPriority.LATER, added_s
    underrun_s = first_audio_s + start_s
    return SpeechPriority.URGENT if underrun_s - now_s < URGENT_S else SpeechPriority.LATER, underrun_s


def chunk_sizes(stage: Token2WavConfig, codes_per_block: int) -> ChunkSizes:
    """Return the stage's chunk sizes, `ChunkSizes` by default; raise `StageError` unless all are whole blocks.

    With `batching: padded` a chunk continues from the state of the one before it, so it needs no context by default.
    """
    sizes = {name: size for name in _SIZES if (size := getattr(stage, f"stream_{name}_codes")) is not None}
    for name, size in sizes.items():
        if size % codes_per_block:
            fitting = max(1, round(size / codes_per_block)) * codes_per_block
            raise StageError(
                f"`stream_{name}_codes` is {size}, and token2wav attends to blocks of {codes_per_block} codes",
                stage=stage.name,
                hint=f"--set {stage.name}.stream_{name}_codes={fitting}",
            )
    if stage.batching == "padded":
        return ChunkSizes(**{"context": 0, **sizes})
    # Audio that is held back is computed with the next chunk, from the codes in its context.
    return ChunkSizes(**sizes) if sizes.get("context") != 0 else ChunkSizes(**sizes, held_back=0)
