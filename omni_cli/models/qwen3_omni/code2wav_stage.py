"""Qwen3-Omni's code2wav on a vLLM engine: whole waveforms, or chunk by chunk while codes still arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from vllm import PoolingParams

from omni_cli.errors import InputError, StageError
from omni_cli.models.qwen3_omni.architectures import CODE2WAV
from omni_cli.models.qwen3_omni.settings import Code2WavConfig
from omni_cli.models.qwen3_omni.stages import speaking_config
from omni_cli.stage.messages import AppendInput, Array, Audio, Report, RequestDone, StageRequest, WaveformChunk
from omni_cli.stage.payloads import decode_additional_information, encode_additional_information, tensor_of
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION
from omni_cli.vllm_integration.diffusion_entry import NoOutput
from omni_cli.vllm_integration.stage import ActiveRequest, VllmStage

SAMPLE_RATE = 24_000
SAID_NOTHING = "the talker said nothing: it ended at once"
_FIRST_CHUNK_FRAMES = 4
_CHUNK_FRAMES = 12


@dataclass
class FrameStream:
    """A request whose audio is made in parts; each of them is a separate request in the engine."""

    request: StageRequest
    added_s: float
    # Frames (num_frames, num_codebooks) that have not been sent to the engine.
    waiting: list[torch.Tensor] = field(default_factory=list)
    has_all_codes: bool = False
    num_frames: int = 0
    num_parts: int = 0
    num_made: int = 0
    vocoder_s: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.has_all_codes and self.num_made == self.num_parts

    def part_id(self, number: int) -> str:
        """Id that no other request has."""
        return f"{self.request.request_id}\0{number}"


class Code2WavStage(VllmStage):
    """A waveform from frames of codes."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, Code2WavConfig)
        if spec.stage.execution != "eager":
            raise StageError(
                f"code2wav has no `execution: {spec.stage.execution}`",
                stage=spec.stage.name,
                hint=f"--set {spec.stage.name}.execution=eager",
            )
        speaking_config(spec)
        super().__init__(spec, emit)
        self._first_frames = spec.stage.stream_first_chunk_frames or _FIRST_CHUNK_FRAMES
        self._chunk_frames = spec.stage.stream_chunk_frames or _CHUNK_FRAMES
        config = self.engine.vllm_config.model_config.hf_config.code2wav_config
        self._num_codes, self._num_codebooks = config.codebook_size, config.num_quantizers
        self._streams: dict[str, FrameStream] = {}
        (self._model,) = self.engine.collective_rpc("get_model")

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "hf_overrides": {"architectures": [CODE2WAV]}}

    @property
    def effective(self) -> dict[str, object]:
        stage = self.spec.stage
        assert isinstance(stage, Code2WavConfig)
        return {**super().effective, "execution": "eager", "stream": stage.streams}

    @property
    def settings(self) -> dict[str, object]:
        return {
            **super().settings,
            "execution": "eager",
            "stream_first_chunk_frames": self._first_frames,
            "stream_chunk_frames": self._chunk_frames,
        }

    def add(self, request: StageRequest) -> None:
        stream = self._streams[request.request_id] = FrameStream(request, time.perf_counter())
        try:
            self._feed(stream, request.handoff, is_last=not request.more_follows)
        except BaseException:
            del self._streams[request.request_id]
            raise

    def append(self, command: AppendInput) -> None:
        stream = self._streams.get(command.request_id)
        if stream is not None:
            self._feed(stream, command.handoff, is_last=command.is_last)

    def _feed(self, stream: FrameStream, handoff: bytes | None, *, is_last: bool) -> None:
        """Send the engine a part if there are frames enough for one."""
        stream.waiting.append(self._frames(handoff))
        stream.has_all_codes = is_last
        num_waiting = sum(map(len, stream.waiting))
        stream.num_frames += len(stream.waiting[-1])
        wanted = self._chunk_frames if stream.num_parts else self._first_frames
        if not is_last and (num_waiting < wanted or not stream.request.streams):
            return
        if not stream.num_frames:
            raise InputError(SAID_NOTHING)
        if not num_waiting:
            raise StageError("the last part of the codes is empty", stage=self.spec.stage.name)
        frames, stream.waiting = torch.cat(stream.waiting), []
        request = msgspec.structs.replace(stream.request, request_id=stream.part_id(stream.num_parts), handoff=None)
        stream.num_parts += 1
        self.admit(ActiveRequest(request, time.perf_counter(), context={"stream": stream, "frames": frames}))

    def _frames(self, handoff: bytes | None) -> torch.Tensor:
        """(num_frames, num_codebooks) int64; raises `InputError` for a code that code2wav does not know."""
        assert handoff is not None  # code2wav never starts a chain
        frames = tensor_of(decode_additional_information(handoff, self.payload_limits), "codes", num_dims=2)
        if frames.shape[1] != self._num_codebooks:
            raise InputError(
                f"the talker made {frames.shape[1]} codes per frame, and code2wav has {self._num_codebooks}"
            )
        outside = frames[(frames < 0) | (frames >= self._num_codes)]
        if len(outside):
            raise InputError(f"the talker made code {int(outside[0])}, and code2wav knows 0 to {self._num_codes - 1}")
        return frames

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], PoolingParams]:
        stream, frames = active.context["stream"], active.context["frames"]
        information = {
            "stream": [stream.request.request_id],
            "is_last": [int(stream.has_all_codes)],
            "codes": frames,
        }
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(information, self.payload_limits)}
        return {"prompt_token_ids": frames[:, 0].tolist()}, PoolingParams(task="plugin", extra_kwargs=extra)

    def request_id_of(self, active: ActiveRequest) -> str:
        stream: FrameStream = active.context["stream"]
        return stream.request.request_id

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        for number in range(stream.num_made, stream.num_parts):
            super().abort(stream.part_id(number))
        self._model.forget(request_id)

    def output(self, active: ActiveRequest, output: Any) -> list[Report]:
        stream: FrameStream = active.context["stream"]
        made = output.outputs.data
        self._check_waveform(made)
        audio = Audio(Array.of(made.numpy()), SAMPLE_RATE)
        stream.num_made += 1
        stream.vocoder_s += time.perf_counter() - active.added_s
        request_id = stream.request.request_id
        reports: list[Report] = [WaveformChunk(request_id, audio)] if stream.request.streams else []
        if not stream.is_done:
            return reports
        del self._streams[request_id]
        trace = {
            "latency_s": time.perf_counter() - stream.added_s,
            "num_input_tokens": stream.num_frames,
            "vocoder_s": stream.vocoder_s,
        }
        if not stream.request.streams:
            return [RequestDone(request_id, trace, audio=audio)]
        return [*reports, RequestDone(request_id, {**trace, "num_chunks": stream.num_parts})]

    def _check_waveform(self, made: torch.Tensor | NoOutput) -> None:
        """Raise `StageError` unless this is a waveform (num_samples,) of finite numbers."""
        if isinstance(made, NoOutput):
            raise StageError(made.reason, stage=self.spec.stage.name)
        if made.dim() != 1 or not made.numel():
            raise StageError(f"the model made {tuple(made.shape)}, which is not a waveform", stage=self.spec.stage.name)
        self.check_numbers(made, "samples")
