"""The codes of a frame after the first, predicted within the step that samples the first, as input of later steps.

The predictor runs once the first code of a frame is sampled. The next step needs the frame's input row, and so does
the recomputation of a preempted request, so codes are kept until their request ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.distributed import get_pp_group

from omni_cli.backends.execution.copies import PendingCopy
from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.backends.execution.ranges import Clock, clock_for, mark
from omni_cli.backends.vllm.outputs import with_payloads
from omni_cli.backends.vllm.runner_mixins import GRAPH_COUNTERS, ARRunnerMixin

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

    from omni_cli.backends.vllm.hidden_states import ComputedSpan

_FRAMES_PER_BLOCK = 64
# Temperatures below it are greedy, as in vLLM's sampler.
_GREEDY_BELOW = 1e-5


class Draws:
    """Uniform random numbers in [0, 1) for each frame, which depend only on the request's seed and the frame."""

    def __init__(self, seed: int, per_frame: int) -> None:
        self._seed = seed % (1 << 64)
        self._per_frame = per_frame
        self._block = -1
        self._rows = np.empty((0, per_frame), np.float32)

    def get(self, frame: int) -> np.ndarray:
        """Return (per_frame,) float32."""
        block, offset = divmod(frame, _FRAMES_PER_BLOCK)
        if block != self._block:
            generator = np.random.default_rng([self._seed, block])
            self._rows = generator.random((_FRAMES_PER_BLOCK, self._per_frame), dtype=np.float32)
            self._block = block
        row: np.ndarray = self._rows[offset]
        return row


@dataclass
class RequestFrames:
    """The frames of one request, each (num_codebooks,) int64 on the device."""

    num_prompt_tokens: int
    draws: Draws
    is_greedy: bool
    codes: list[torch.Tensor] = field(default_factory=list)

    def put(self, frame: int, codes: torch.Tensor) -> None:
        # vLLM may discard the last token and repeat its step, which yields the same codes.
        del self.codes[frame:]
        if len(self.codes) != frame:
            raise RuntimeError(f"expected frame {len(self.codes)}, got frame {frame}")
        self.codes.append(codes)

    def get_codes(self, span: ComputedSpan) -> list[torch.Tensor]:
        """Return the codes of the span's positions that are frames."""
        start = max(span.start, self.num_prompt_tokens) - self.num_prompt_tokens
        count = max(0, span.end - self.num_prompt_tokens - start)
        if count > len(self.codes) - start:
            raise RuntimeError(f"request {span.request_id}: the codes of frame {len(self.codes)} are not known")
        return self.codes[start : start + count] if count else []


class FrameStore:
    """The frames of all requests in a worker.

    With `guides`, it changes the logits of first codes; with `draws_first_again`, `predict` may return others. A model
    has `num_codebooks`, `predict_codes`, `rows_of_codes` and `add_rows`; see `models.codec.frame_model.FrameModel`.
    """

    guides: ClassVar[bool] = False
    draws_first_again: ClassVar[bool] = False

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model: Any = model
        self._device = device
        self._requests: dict[str, RequestFrames] = {}
        # Rows of the latest step (num_requests, hidden_size), with the request, position and length (1) of each.
        self._latest: torch.Tensor | None = None
        self._latest_of: list[tuple[str, int, int]] = []

    def begin(
        self, request_id: str, num_prompt_tokens: int, params: SamplingParams, information: Mapping[str, Any]
    ) -> None:
        """Start a request; `information` came with its prompt."""
        draws = Draws(params.seed or 0, self._model.num_codebooks - 1)
        self._requests[request_id] = RequestFrames(num_prompt_tokens, draws, params.temperature < _GREEDY_BELOW)

    @property
    def num_codebooks(self) -> int:
        count: int = self._model.num_codebooks
        return count

    def receive(self, request_id: str, codes: torch.Tensor) -> None:
        """Keep codes (num_codebooks,) of the next frame, which another rank predicted."""
        request = self._requests.get(request_id)
        if request is not None:  # the request may have ended
            request.put(len(request.codes), codes)

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def guide(self, spans: Sequence[ComputedSpan], logits: torch.Tensor) -> torch.Tensor:
        """Return the logits (num_requests, vocab_size) from which the first code of each frame is sampled."""
        return logits

    def predict(self, spans: Sequence[ComputedSpan], hidden: torch.Tensor, first_codes: torch.Tensor) -> torch.Tensor:
        """Predict the codes (num_requests, num_codebooks) of the frames that begin with `first_codes` (num_requests,).

        Each of the `spans` ends at the position before the frame; `hidden` (num_requests, hidden_size) is the state
        there.
        """
        requests = [self._requests[span.request_id] for span in spans]
        frames = [span.end - request.num_prompt_tokens for span, request in zip(spans, requests, strict=True)]
        draws = None
        if not all(request.is_greedy for request in requests):
            pairs = zip(requests, frames, strict=True)
            drawn = np.stack([request.draws.get(frame) * (not request.is_greedy) for request, frame in pairs])
            draws = torch.from_numpy(drawn)
        codes, rows = self._model.predict_codes(hidden, first_codes, draws)
        for request, frame, row in zip(requests, frames, codes.unbind(), strict=True):
            request.put(frame, row)
        self._latest, self._latest_of = rows, [(span.request_id, span.end, 1) for span in spans]
        return codes

    def fill(self, spans: Sequence[ComputedSpan]) -> None:
        """Add the rows of frames to the model's input embeddings of the next forward pass."""
        if (
            self._latest is not None
            and [(span.request_id, span.start, span.length) for span in spans] == self._latest_of
        ):
            self._model.add_rows(self._latest)
            return
        codes = [self._requests[span.request_id].get_codes(span) for span in spans]
        if not any(codes):
            return
        frame_rows = self._model.rows_of_codes(torch.stack(list(itertools.chain.from_iterable(codes))))
        rows = frame_rows.new_zeros((sum(span.length for span in spans), frame_rows.shape[1]))
        for span, part in zip(spans, frame_rows.split(list(map(len, codes))), strict=True):
            # In a span, frames follow the prompt.
            end = span.row + span.length
            rows[end - len(part) : end] = part
        self._model.add_rows(rows)


@dataclass(frozen=True)
class StepCodes:
    """The codes (num_requests, num_codebooks) of a step, which may still be being copied.

    `predicted` and `backbone` are the marks around its code predictor and its forward pass.
    """

    request_ids: list[str]
    pending: PendingCopy
    predicted: tuple[object, object]
    backbone: tuple[object, object]

    def rows(self, clock: Clock) -> dict[str, torch.Tensor]:
        """By request (1, num_codebooks + 2) int64: the codes, and the step's nanoseconds in predictor and backbone."""
        codes = self.pending.get()
        spent = [round(clock.seconds(*marks) * 1e9) for marks in (self.predicted, self.backbone)]
        times = codes.new_tensor(spent).expand(len(codes), -1)
        return dict(zip(self.request_ids, torch.cat([codes, times], dim=1).split(1), strict=True))


class CodeRunnerMixin(ARRunnerMixin):
    """For models with a `FrameStore`, or with what its own base needs.

    A step's codes leave the worker in `pooler_output`, one row next to each sampled token (`StepCodes.rows`).
    """

    frames: FrameStore

    def load_model(self, *args: object, **kwargs: object) -> None:
        super().load_model(*args, **kwargs)
        model = self.get_model()
        self.frames = getattr(model, "frame_store", FrameStore)(model, self.device)
        self._sampled_hidden: torch.Tensor | None = None
        self._codes: StepCodes | None = None
        self._clock = clock_for(self.device.type)

    def capture_model(self) -> int:
        num_bytes: int = super().capture_model()
        captures = self.compilation_config.cudagraph_mode != CUDAGraphMode.NONE
        if not captures or not get_pp_group().is_last_rank:
            return num_bytes
        with mark("capture code predictor"):
            model = self.get_model()
            compiles = self.compilation_config.mode != CompilationMode.NONE
            model.capture_predictor(CudaGraphBackend(self.device), compiles=compiles)
        return num_bytes + int(model.predictor_counters.graph_pool_bytes)

    def execution_counters(self) -> dict[str, float]:
        counters = self.get_model().predictor_counters
        return {
            **super().execution_counters(),
            **{f"predictor_{name}": getattr(counters, name) for name in GRAPH_COUNTERS},
        }

    def _begin_request(self, request: NewRequestData) -> None:
        super()._begin_request(request)
        information = self.request_payloads[request.req_id].information
        self.frames.begin(request.req_id, len(request.prompt_token_ids), request.sampling_params, information)

    def _update_states(self, scheduler_output: SchedulerOutput) -> object:
        corrections = super()._update_states(scheduler_output)
        if not get_pp_group().is_last_rank:
            for request_id, codes in getattr(scheduler_output, "omni_codes", {}).items():
                self.frames.receive(request_id, codes[0, : self.frames.num_codebooks].to(self.device))
        return corrections

    def _forget_request(self, request_id: str) -> None:
        super()._forget_request(request_id)
        self.frames.forget(request_id)

    def _fill_inputs(self) -> Sequence[ComputedSpan]:
        spans = super()._fill_inputs()
        if spans:
            self.frames.fill(spans)
        return spans

    def _model_forward(self, *args: object, **kwargs: object) -> object:
        began = self._clock.mark()
        output = super()._model_forward(*args, **kwargs)
        self._backbone = began, self._clock.mark()
        return output

    def sample_tokens(self, grammar_output: object) -> object:
        state = self.execute_model_state
        if state is None:
            return super().sample_tokens(grammar_output)
        self._sampled_hidden, self._codes = state.sample_hidden_states, None
        output = super().sample_tokens(grammar_output)
        self._sampled_hidden = None
        if self._codes is None:
            return output
        return with_payloads(output, lambda _, codes=self._codes: codes.rows(self._clock))

    def _sample(self, logits: torch.Tensor | None, *args: Any, **kwargs: Any) -> Any:
        if self.frames.guides and self._sampled_hidden is not None and logits is not None:
            kept, spans = self._whole_spans()
            if spans:
                logits = logits.float()
                logits[kept] = self.frames.guide(spans, logits[kept])
        output = super()._sample(logits, *args, **kwargs)
        if self._sampled_hidden is not None:
            began = self._clock.mark()
            with mark("code predictor"):
                predicted = self._predict(self._sampled_hidden, output.sampled_token_ids)
            ended = self._clock.mark()
            if predicted is not None and self.returns_outputs:
                spans, codes = predicted
                with mark("output copy"):
                    pending = self.output_copy.start(codes, reused=True)
                request_ids = [span.request_id for span in spans]
                self._codes = StepCodes(request_ids, pending, (began, ended), self._backbone)
        return output

    def _predict(self, hidden: torch.Tensor, sampled: torch.Tensor) -> tuple[list[ComputedSpan], torch.Tensor] | None:
        """Codes of all requests but those with a part of a prompt, whose sampled token is discarded; None for none."""
        kept, spans = self._whole_spans()
        if not spans:
            return None
        rows: torch.Tensor | slice = slice(None)
        if len(kept) < len(hidden):
            rows = torch.from_numpy(kept).to(self.device, non_blocking=True)
        codes = self.frames.predict(spans, hidden[rows], sampled[rows, 0])
        if self.frames.draws_first_again:
            sampled[rows, 0] = codes[:, 0].to(sampled.dtype)
        return spans, codes

    def _whole_spans(self) -> tuple[np.ndarray, list[ComputedSpan]]:
        """The spans of the requests whose sampled token counts, and which of the step's they are."""
        spans = self._spans()
        (kept,) = np.nonzero(~self.discard_request_mask.np[: len(spans)])
        return kept, [spans[index] for index in kept]
