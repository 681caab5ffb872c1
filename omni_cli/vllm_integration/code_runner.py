"""The codes of a frame after the first, predicted within the step that samples the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.distributed import get_pp_group

from omni_cli.execution.copies import PendingCopy
from omni_cli.execution.cuda_graphs import CudaGraphBackend
from omni_cli.execution.ranges import mark
from omni_cli.execution.timeline import Clock, clock_for
from omni_cli.vllm_integration.arriving_embeds import get_codes
from omni_cli.vllm_integration.code_frames import FrameStore
from omni_cli.vllm_integration.outputs import with_payloads
from omni_cli.vllm_integration.runner_mixins import ARRunnerMixin

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

    from omni_cli.vllm_integration.hidden_states import ComputedSpan


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


PREDICTOR_COUNTERS = ("graphs_captured", "graph_replays", "eager_calls", "graph_pool_bytes", "capture_s")


class CodeRunnerMixin(ARRunnerMixin):
    """For models with `predict_codes` (`code_frames.CodeModel`).

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

    @property
    def num_branches(self) -> int:
        return getattr(self.get_model(), "num_branches", 0)

    def allocate_branches(self, num_tokens: int) -> None:
        if self.num_branches:
            self.get_model().allocate_branches(num_tokens)

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
            **{f"predictor_{name}": getattr(counters, name) for name in PREDICTOR_COUNTERS},
        }

    def _begin_request(self, request: NewRequestData) -> None:
        super()._begin_request(request)
        information = self.request_payloads[request.req_id].information
        self.frames.begin(request.req_id, len(request.prompt_token_ids), request.sampling_params, information)

    def _update_states(self, scheduler_output: SchedulerOutput) -> object:
        corrections = super()._update_states(scheduler_output)
        if not get_pp_group().is_last_rank:
            for request_id, codes in get_codes(scheduler_output).items():
                self.frames.receive(request_id, codes[0, : self.frames.num_codebooks].to(self.device))
        return corrections

    def _forget_request(self, request_id: str) -> None:
        super()._forget_request(request_id)
        self.frames.forget(request_id)

    def _fill_inputs(self) -> None:
        super()._fill_inputs()
        if self._fill_input_embeds is not None:
            self.frames.fill(self._spans())

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
