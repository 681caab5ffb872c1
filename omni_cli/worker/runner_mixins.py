"""What our model runners add to vLLM's, as mixins over the hooks that `GPUModelRunner` and `CPUModelRunner` share.

    OmniRunnerMixin            decodes request payloads, sets M-RoPE positions that came with a request
    ├── ARRunnerMixin          hidden states per request, beside tokens that stay as they are
    └── DiffusionRunnerMixin   one tensor per request, no logits and no sampling

A worker makes its vLLM runner one of these by changing the runner's class after vLLM has built it (`workers.py`), so
a mixin has no `__init__`; `init_omni` is called once, right after.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_cli.worker.diffusion_entry import DiffusionInput, diffusion_entry, one_tensor_per_request
from omni_cli.worker.outputs import AsyncOmniModelRunnerOutput, OmniModelRunnerOutput
from omni_cli.worker.request_payloads import RequestPayload, read_request_payload
from omni_cli.worker.row_ledger import ComputedSpan, RowLedger

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class OmniRunnerMixin:
    """Request payloads, for every kind of stage."""

    def init_omni(self) -> None:
        self.request_payloads: dict[str, RequestPayload] = {}
        self._step_spans: list[ComputedSpan] = []

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:
            # vLLM allocates these in its warm-up run, and has none when it is eager with a KV cache of given size.
            self.intermediate_tensors = self.get_model().make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for request_id in scheduler_output.finished_req_ids:
            self._forget_request(request_id)
        for request in scheduler_output.scheduled_new_reqs:
            self.request_payloads[request.req_id] = read_request_payload(
                request.sampling_params, request.pooling_params
            )
        return super()._update_states(scheduler_output)

    def _forget_request(self, request_id: str) -> None:
        self.request_payloads.pop(request_id, None)

    def _init_mrope_positions(self, req_state: Any) -> None:
        """M-RoPE positions (3, num_prompt_tokens) that came with the request; else the model computes them."""
        given = self.request_payloads[req_state.req_id].information.get("mrope_positions")
        if given is None:
            super()._init_mrope_positions(req_state)
            return
        req_state.mrope_positions = given
        req_state.mrope_position_delta = int(given.max()) + 1 - given.shape[1]

    def _prepare_inputs(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_inputs(scheduler_output, *args, **kwargs)
        self._step_spans = self._spans(scheduler_output)
        return prepared

    def _spans(self, scheduler_output: SchedulerOutput) -> list[ComputedSpan]:
        """What this step computes, in the batch's own order, which vLLM may have changed while preparing it."""
        spans = []
        row = 0
        for index, request_id in enumerate(self.input_batch.req_ids):
            length = scheduler_output.num_scheduled_tokens[request_id]
            spans.append(
                ComputedSpan(
                    request_id=request_id,
                    start=int(self.input_batch.num_computed_tokens_cpu[index]),
                    length=length,
                    row=row,
                    num_draft_tokens=len(scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())),
                )
            )
            row += length
        return spans


class ARRunnerMixin(OmniRunnerMixin):
    """Hidden states per request through `pooler_output`; tokens, logprobs and everything else are vLLM's.

    A request asks for its hidden states (`WANTS_HIDDEN_STATES`); for the others nothing is gathered, copied or kept.
    A model with `fill_conditions` gets, before each forward pass, the rows that each position is conditioned on.
    """

    def init_omni(self) -> None:
        super().init_omni()
        self.row_ledger = RowLedger()

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        if self.cache_config.enable_prefix_caching and get_pp_group().is_last_rank:
            self.row_ledger.keep_cached_rows(
                kv_cache_config.num_blocks,
                kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                self.model_config.get_hidden_size(),
                self.model_config.dtype,
            )

    def _forget_request(self, request_id: str) -> None:
        super()._forget_request(request_id)
        self.row_ledger.forget(request_id)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        fill_conditions = getattr(self.get_model(), "fill_conditions", None)
        if fill_conditions is not None and get_pp_group().is_first_rank:
            for span in self._step_spans:
                payload = self.request_payloads[span.request_id]
                fill_conditions(
                    span.row,
                    payload.conditions(span.start, span.length, self.device),
                    payload.num_bare(span.start, span.length),
                )
        return super()._model_forward(*args, **kwargs)

    def sample_tokens(self, grammar_output: Any) -> Any:
        state = self.execute_model_state
        spans = [] if state is None else self._wanted_spans()
        # Before sampling, which may draft into the same buffers.
        rows = self._gather_rows(state.hidden_states, spans) if spans else None
        output = super().sample_tokens(grammar_output)
        if rows is None:
            return output
        finish = partial(self._with_hidden_states, spans, rows)
        if isinstance(output, AsyncModelRunnerOutput):
            return AsyncOmniModelRunnerOutput(output, finish)
        return finish(output)

    def _wanted_spans(self) -> list[ComputedSpan]:
        wanted = [s for s in self._step_spans if self.request_payloads[s.request_id].wants_hidden_states]
        if not self.row_ledger.keeps_cached_rows:
            return wanted
        # A copy: with an asynchronous output, vLLM may have moved on to the next step's blocks when it is settled.
        return [replace(s, block_ids=tuple(self.requests[s.request_id].block_ids[0])) for s in wanted]

    def _gather_rows(self, hidden_states: Any, spans: list[ComputedSpan]) -> torch.Tensor | None:
        """Rows of the requests that want them, (num_rows, hidden_size) on the host, in one transfer a step.

        None on pipeline ranks but the last, which hold intermediate tensors.
        """
        if not isinstance(hidden_states, torch.Tensor):
            return None
        if len(spans) == len(self._step_spans):
            picked = hidden_states[: spans[-1].row + spans[-1].length]
        else:
            index = torch.cat([torch.arange(span.row, span.row + span.length) for span in spans])
            picked = hidden_states[index.to(hidden_states.device)]
        # `copy`: on a CPU device the next step may write into the same memory.
        return picked.detach().to("cpu", copy=True)

    def _with_hidden_states(
        self, spans: list[ComputedSpan], rows: torch.Tensor, output: ModelRunnerOutput
    ) -> OmniModelRunnerOutput:
        payloads = {}
        offset = 0
        for span in spans:
            step_rows = rows[offset : offset + span.length]
            offset += span.length
            if span.num_draft_tokens:
                sampled = output.sampled_token_ids[output.req_id_to_index[span.request_id]]
                span = span.accepted(len(sampled))
            owed = self.row_ledger.settle(span, step_rows[: span.length])
            if owed.shape[0]:
                payloads[span.request_id] = owed
        return OmniModelRunnerOutput.with_payloads(output, payloads)


class DiffusionRunnerMixin(OmniRunnerMixin):
    """A whole diffusion in one step: the model turns each request's tokens and information into one tensor."""

    def init_omni(self) -> None:
        super().init_omni()
        # The config is the whole omni model's and has M-RoPE; a diffusion stage has no positions.
        self.uses_mrope = False

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self._diffuse = diffusion_entry(self.get_model())

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        inputs = [
            DiffusionInput(
                request_id=span.request_id,
                token_ids=input_ids[span.row : span.row + span.length],
                information=self.request_payloads[span.request_id].information,
            )
            for span in self._step_spans
        ]
        if intermediate_tensors is not None:
            return self._diffuse(inputs, intermediate_tensors=intermediate_tensors)
        return self._diffuse(inputs)

    def _pool(self, hidden_states: Any, *args: Any, **kwargs: Any) -> OmniModelRunnerOutput:
        """`hidden_states` is what the model returned: a tensor, a list or a dict with one entry a request."""
        request_ids = list(self.input_batch.req_ids)
        tensors = one_tensor_per_request(hidden_states, request_ids)
        output = ModelRunnerOutput(req_ids=request_ids, req_id_to_index=dict(self.input_batch.req_id_to_index))
        return OmniModelRunnerOutput.with_payloads(
            output, {request_id: tensor.detach().to("cpu") for request_id, tensor in tensors.items()}
        )
