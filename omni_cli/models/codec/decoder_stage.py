"""A codec decoder as a vLLM diffusion model, and its stage: a waveform from frames of codes, in pieces of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import rename_source_key
from vllm import PoolingParams
from vllm.config import VllmConfig
from vllm.outputs import PoolingRequestOutput

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.backends.vllm.diffusion_runner import NOT_FINISHED, DiffusionInput, DiffusionModel, Unfinished
from omni_cli.backends.vllm.outputs import NoOutput
from omni_cli.backends.vllm.stage import ActiveRequest, VllmStage
from omni_cli.checkpoints.shards import lacking, shards_with_prefix
from omni_cli.config.schema import PIPELINE_ARGUMENTS
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.codec.frame_stage import CODES, NUM_BEFORE
from omni_cli.models.codec.settings import CodecConfig
from omni_cli.models.codec.streaming import MAX_FRAMES_PER_CALL, DecoderState, Piece, StreamingCodecDecoder
from omni_cli.requests.contents import SpeechOptions, StageIO
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report, RequestDone
from omni_cli.stage.payloads import encode_additional_information, get_integers, get_tensor
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION


class CodecForDiffusion(DiffusionModel):
    """transformers' codec as a part of a checkpoint; its weights' names begin with `weights_prefix`.

    A request of the engine is one piece of a stream, whose state stays here until `forget`. Its prompt is the first
    codebook's codes; its information has all `codes` (num_codebooks, num_frames), the name of the `stream`, `is_last`,
    and `is_urgent`: beside such a piece, the others of a step wait for the next one, each once at most.
    """

    weights_prefix: ClassVar[str]
    sample_rate: int
    codebook_size: int
    num_codebooks: int

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self._model = vllm_config.model_config.model
        self.allow_patterns_overrides = shards_with_prefix(self._model, self.weights_prefix)
        self.codec = self.make_codec(vllm_config.model_config.hf_config)
        self._decoder = self.make_decoder(self.codec)
        # So many last frames of a piece wait for the next one, unless it is the stream's last.
        self.reach: int = getattr(self._decoder, "reach", 0)
        self.counters: ExecutionCounters = self._decoder.counters
        self._states: dict[str, DecoderState] = {}
        self._postponed: set[str] = set()
        self._clock = clock_for(vllm_config.device_config.device_type)
        self._marks: tuple[object, object] | None = None

    def make_codec(self, config: Any) -> nn.Module:
        """Create the codec from its configuration; set `sample_rate`, `codebook_size` and `num_codebooks`."""
        raise NotImplementedError

    def make_decoder(self, codec: nn.Module) -> Any:
        """Create what decodes pieces, with the interface of `StreamingCodecDecoder`."""
        return StreamingCodecDecoder(codec)

    def use_graphs(self, stage: str, max_num_seqs: int, sizes: Sequence[int], whole: int) -> None:
        """Replay from CUDA graphs the pieces of a stream, of these numbers of frames in turn, and those of `whole`."""
        device = next(self.codec.parameters()).device
        example = torch.zeros((max_num_seqs, self.num_codebooks, 1), dtype=torch.long, device=device)
        self._decoder.use_graphs(CudaGraphBackend(device), stage=stage, sizes=sizes, whole=whole, example=example)

    @torch.inference_mode()
    def sample(self, inputs: Sequence[DiffusionInput]) -> dict[str, torch.Tensor | Unfinished]:
        """Return the samples (num_samples,) float32 of the pieces by request; a stream may have one at a time."""
        begin = self._clock.mark()
        urgent = {item.request_id for item in inputs if item.information["is_urgent"] == [1]}
        self._postponed = {item.request_id for item in inputs if urgent} - urgent - self._postponed
        pieces = {item.request_id: self._piece(item) for item in inputs if item.request_id not in self._postponed}
        waveforms = [samples.float() for samples in self._decoder.decode(list(pieces.values()))]
        self._marks = (begin, self._clock.mark())
        return {**dict.fromkeys(self._postponed, NOT_FINISHED), **dict(zip(pieces, waveforms, strict=True))}

    def _piece(self, item: DiffusionInput) -> Piece:
        (stream,) = item.information["stream"]
        codes = get_tensor(dict(item.information), CODES, num_dims=2)
        (is_last,) = item.information["is_last"]
        state = self._states.setdefault(stream, DecoderState())
        return Piece(codes.to(item.token_ids.device, non_blocking=True).long(), state, bool(is_last))

    @property
    def latest_s(self) -> float:
        """Seconds that the latest call of `sample` took on the device."""
        assert self._marks is not None
        return self._clock.seconds(*self._marks)

    def forget(self, stream: str) -> None:
        """Drop the state of a stream that has ended."""
        self._states.pop(stream, None)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the codec's weights by transformers' names for them; raises `CheckpointError` if any is missing."""
        prefix, renamings = self.weights_prefix, get_model_conversion_mapping(self.codec)
        state = {
            rename_source_key(name.removeprefix(prefix), renamings, [])[0]: weight
            for name, weight in weights
            if name.startswith(prefix)
        }
        missing = self.codec.load_state_dict(state, strict=False).missing_keys
        if missing:
            raise lacking(self._model, [prefix + name for name in missing])
        return {f"codec.{name}" for name in state}


# Frames of a piece of a request that is not streamed, to which its last piece is padded: 10 s have 125.
WHOLE_PIECE_FRAMES = 128
# Frames of all pieces in one step.
FRAMES_PER_STEP = 1024
# Urgent are the first chunk of a stream, and one whose audio so far ends within this time.
SOON_S = 0.1
# Keys of a diffusion stage that have no meaning without denoising.
_DENOISING = (*PIPELINE_ARGUMENTS, "call")


@dataclass
class CodeStream:
    """A request; each piece of it is a separate request in the engine, one at a time."""

    request: GenerateRequest
    added_s: float
    # Codes (num_codebooks, num_frames) that are in no piece yet.
    waiting: torch.Tensor
    has_all_codes: bool = False
    # Frames that stay until it is known whether they are the last.
    num_held: int = 0
    num_frames: int = 0
    # Of a recording, before the first frame of the answer: decoded, for the state that they leave, and not heard.
    num_before: int = 0
    num_decoded: int = 0
    num_pieces: int = 0
    num_chunks: int = 0
    heard_until_s: float = 0.0
    is_decoding: bool = False
    decode_s: float = 0.0

    @property
    def piece_id(self) -> str:
        """Id of the latest piece, unique in the engine."""
        return f"{self.request.request_id}\0{self.num_pieces}"

    def take(self, size: int) -> torch.Tensor | None:
        """Return the codes of the next piece of `size` frames; None if there are too few and more will come."""
        num_waiting = self.waiting.shape[1]
        if num_waiting < (1 if self.has_all_codes else size + self.num_held):
            return None
        piece, self.waiting = self.waiting[:, :size], self.waiting[:, size:]
        self.num_pieces += 1
        return piece


class CodecStage(VllmStage):
    """A waveform from frames of codes; the model is a `CodecForDiffusion`."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, CodecConfig)
        self.stage = spec.stage
        useless = [name for name in _DENOISING if name in spec.stage.model_fields_set]
        if useless:
            raise StageError(
                f"`{useless[0]}` has no effect: a codec decoder denoises nothing",
                stage=spec.stage.name,
                hint="remove the key from the profile",
            )
        if spec.stage.execution == "compile":
            raise self._refuse("a codec decoder has no")
        if spec.stage.execution == "cudagraph" and not torch.cuda.is_available():
            raise self._refuse("this machine has no CUDA device for")
        super().__init__(spec, emit)
        (self.model,) = self.engine.collective_rpc("get_model")
        if spec.stage.execution == "cudagraph" and self.model.reach:
            raise self._refuse("this codec has no")
        self._streams: dict[str, CodeStream] = {}
        self._whole_piece: int = min(WHOLE_PIECE_FRAMES, self.engine.vllm_config.model_config.max_model_len)
        if spec.stage.execution == "cudagraph":
            num_requests = self.engine.vllm_config.scheduler_config.max_num_seqs
            sizes = [min(size, self._whole_piece) for size in self.stage.chunk_sizes]
            self.model.use_graphs(spec.stage.name, num_requests, sizes, self._whole_piece)

    def _refuse(self, what: str) -> StageError:
        name, execution = self.stage.name, self.stage.execution
        return StageError(f"{what} `execution: {execution}`", stage=name, hint=f"--set {name}.execution=eager")

    def engine_args(self) -> dict[str, object]:
        arguments = super().engine_args()
        max_model_len = arguments.get("max_model_len", FRAMES_PER_STEP)
        assert isinstance(max_model_len, int)
        return {
            **arguments,
            "scheduler_cls": "omni_cli.backends.vllm.schedulers.StepwiseScheduler",
            "max_model_len": max_model_len,
            "max_num_batched_tokens": max(max_model_len, FRAMES_PER_STEP),
        }

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "execution": self.stage.execution or "eager", "stream": self.stage.streams}

    @property
    def execution_counters(self) -> dict[str, float]:
        return {**super().execution_counters, **self.model.counters.as_dict()}

    @property
    def settings(self) -> dict[str, object]:
        return {
            **super().settings,
            "execution": self.stage.execution or "eager",
            "stream_first_chunk_frames": self.stage.stream_first_chunk_frames,
            "stream_chunk_frames": self.stage.stream_chunk_frames,
        }

    def warm_up_batches(self) -> Iterable[Sequence[GenerateRequest]]:
        codes = torch.zeros((2 * self._whole_piece, self.model.num_codebooks), dtype=torch.long)
        stage = StageIO(input=encode_additional_information({CODES: codes}))
        request = GenerateRequest("", stage=stage)
        for num_requests in range(1, MAX_FRAMES_PER_CALL // self._whole_piece + 1):
            yield [request] * num_requests
        yield [GenerateRequest("", stage=stage, speech=SpeechOptions(stream_audio=True))]

    def add(self, request: GenerateRequest) -> None:
        if request.diffusion:
            raise InputError(f"`{next(iter(request.diffusion))}` has no effect: a codec decoder denoises nothing")
        no_codes = torch.empty((self.model.num_codebooks, 0), dtype=torch.long)
        stream = CodeStream(request, time.perf_counter(), no_codes, num_held=min(1, self.model.reach))
        self._streams[request.request_id] = stream
        self._feed(stream, request.stage.input, is_last=not request.stage.more_follows)

    def append(self, command: AppendInput) -> None:
        stream = self._streams.get(command.request_id)
        if stream is not None:
            self._feed(stream, command.stage_output, is_last=command.is_last)

    def _feed(self, stream: CodeStream, stage_output: bytes | None, *, is_last: bool) -> None:
        information = self.decode_input(stage_output)
        codes = get_tensor(information, CODES, num_dims=2).long().T
        self._check(codes)
        stream.num_before += sum(get_integers(information, NUM_BEFORE)) if NUM_BEFORE in information else 0
        stream.waiting = torch.cat([stream.waiting, codes], dim=1)
        stream.num_frames += codes.shape[1]
        stream.has_all_codes = is_last
        if is_last and stream.num_frames <= stream.num_before:
            raise InputError(f"stage `{self.spec.stage.input}` said nothing: it ended, or was cut, at once")
        self._next_piece(stream)
        if is_last and not stream.is_decoding:
            # All frames were decoded before it was known that no more would come.
            self.emit(self._finish_request(stream))

    def _check(self, codes: torch.Tensor) -> None:
        """Raise `InputError` for codes that the codec does not have."""
        if codes.shape[0] != self.model.num_codebooks:
            raise InputError(
                f"frames of {codes.shape[0]} codes, and the codec has {self.model.num_codebooks} codebooks"
            )
        outside = codes[(codes < 0) | (codes >= self.model.codebook_size)]
        if len(outside):
            raise InputError(
                f"the model made code {outside[0]}, and the codec knows 0 to {self.model.codebook_size - 1}"
            )

    def _next_piece(self, stream: CodeStream) -> None:
        """Send the engine the next piece, unless one is running or there are too few codes."""
        if stream.is_decoding:
            return
        codes = stream.take(self._piece_size(stream))
        if codes is None:
            return
        stream.is_decoding = True
        request = replace(stream.request, request_id=stream.piece_id)
        self.admit(ActiveRequest(request, time.perf_counter(), context={"stream": stream, "codes": codes}))

    def _piece_size(self, stream: CodeStream) -> int:
        if not stream.request.speech.stream_audio:
            return self._whole_piece
        silent: int = max(0, stream.num_before + self.model.reach - stream.num_decoded)
        return min(silent + self.stage.chunk_sizes[: stream.num_chunks + 1][-1], self._whole_piece)

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], PoolingParams]:
        codes, stream = active.context["codes"], active.context["stream"]
        is_streamed = bool(stream.request.speech.stream_audio)
        information = {
            CODES: codes.contiguous(),
            "stream": [stream.request.request_id],
            "is_last": [int(stream.has_all_codes and not stream.waiting.shape[1])],
            "is_urgent": [int(is_streamed and stream.heard_until_s < time.perf_counter() + SOON_S)],
        }
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(information, self.payload_limits)}
        return {"prompt_token_ids": codes[0].tolist()}, PoolingParams(task="plugin", extra_kwargs=extra)

    def get_request_id(self, active: ActiveRequest) -> str:
        stream: CodeStream = active.context["stream"]
        return stream.request.request_id

    def output(self, active: ActiveRequest, output: PoolingRequestOutput) -> list[Report]:
        stream: CodeStream = active.context["stream"]
        samples = output.outputs.data
        if isinstance(samples, NoOutput):
            raise StageError(samples.reason, stage=self.spec.stage.name)
        self.check_numbers(samples, "samples")
        stream.is_decoding = False
        stream.decode_s += self.model.latest_s
        num_frames = active.context["codes"].shape[1]
        num_unheard = min(max(0, stream.num_before - stream.num_decoded), num_frames)
        stream.num_decoded += num_frames
        samples = samples[num_unheard * len(samples) // num_frames :]
        reports: list[Report] = []
        if len(samples):
            stream.num_chunks += 1
            chunk = AudioChunk(stream.request.request_id, samples.numpy(), self.model.sample_rate)
            # After a gap, playback goes on when its sound is there.
            stream.heard_until_s = (
                max(stream.heard_until_s, time.perf_counter()) + len(samples) / self.model.sample_rate
            )
            reports.append(chunk)
        self._next_piece(stream)
        if stream.has_all_codes and not stream.is_decoding:
            reports.append(self._finish_request(stream))
        return reports

    def _finish_request(self, stream: CodeStream) -> RequestDone:
        self._forget(stream.request.request_id)
        trace = {
            "latency_s": time.perf_counter() - stream.added_s,
            "num_input_tokens": stream.num_frames - stream.num_before,
            "vocoder_s": stream.decode_s,
            **({"num_chunks": stream.num_chunks} if stream.request.speech.stream_audio else {}),
        }
        return RequestDone(stream.request.request_id, trace)

    def _forget(self, request_id: str) -> CodeStream | None:
        self.model.forget(request_id)
        return self._streams.pop(request_id, None)

    def abort(self, request_id: str) -> None:
        stream = self._forget(request_id)
        if stream is not None:
            super().abort(stream.piece_id)
