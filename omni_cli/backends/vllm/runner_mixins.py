"""Mixins that extend vLLM's model runners through hooks that `GPUModelRunner` and `CPUModelRunner` share.

    OmniRunnerMixin            decodes request payloads, sets M-RoPE positions from a request
    ├── ARRunnerMixin          hidden states per request, beside unchanged tokens
    │   └── CodeRunnerMixin    the codes of a frame after its token (`code_runner.py`)
    └── DiffusionRunnerMixin   one tensor per request, no logits and no sampling (`diffusion_runner.py`)

`workers.py` makes vLLM build one of these in place of its own.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.config.load import LoadConfig
from vllm.distributed import get_pp_group, get_tp_group
from vllm.forward_context import BatchDescriptor, get_forward_context
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import ModelRunnerOutput

from omni_cli.backends.execution.copies import PendingCopy, make_output_copy
from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.vllm.hidden_states import ComputedSpan, HiddenStateTracker
from omni_cli.backends.vllm.outputs import with_payloads
from omni_cli.backends.vllm.schedulers import Arrived
from omni_cli.backends.vllm.weights import WHOLE_STAGE
from omni_cli.core.compat import replace_attributes
from omni_cli.stage.payloads import DEFAULT_LIMITS
from omni_cli.stage.request_payloads import RequestPayload, read_request_payload

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as VllmRunner

    from omni_cli.config.schema import OutputCopy
else:
    VllmRunner = object  # `cpu.py` and `gpu.py` combine the mixins with vLLM's runners


TRITON_CACHE = "TRITON_CACHE_DIR"
GRAPH_COUNTERS = ("graphs_captured", "graph_replays", "eager_calls", "graph_pool_bytes", "capture_s")


class GraphCounters(ExecutionCounters):
    """Counters of one runner, for forward passes and vLLM's graphs.

    vLLM stores a step's mode and batch shape in the forward context, and its wrappers replay the graph captured for
    that pair. So a step is a replay exactly if its pair was captured, whatever mode was requested: in `piecewise` mode
    a model without compiled parts runs eagerly and counts as eager.
    """

    _captured: frozenset[tuple[CUDAGraphMode, BatchDescriptor]] = frozenset()

    def on_capture(self, pool_bytes: int, seconds: float) -> None:
        """Record that vLLM captured its graphs, with their device memory and time."""
        graphs = [
            (wrapper.runtime_mode, shape)
            for wrapper in CUDAGraphWrapper._all_instances
            for shape, entry in wrapper.concrete_cudagraph_entries.items()
            if entry.cudagraph is not None
        ]
        self._captured, self.graphs_captured = frozenset(graphs), len(graphs)
        self.graph_pool_bytes, self.capture_s = pool_bytes, seconds

    def count_step(self) -> bool:
        """Count a step in its forward context; return True if it is a replay."""
        replays = False
        if self._captured:
            context = get_forward_context()
            replays = (context.cudagraph_runtime_mode, context.batch_descriptor) in self._captured
        self.graph_replays += replays
        self.eager_calls += not replays
        return replays

    def as_dict(self) -> dict[str, float]:
        """Counters so far: forward passes, graphs, bytes of device memory, seconds."""
        return {name: getattr(self, name) for name in GRAPH_COUNTERS}


class OmniRunnerMixin(VllmRunner):
    """Request payloads and the device-to-host output copy, for every kind of stage."""

    intermediate_tensors: IntermediateTensors | None
    load_config: LoadConfig

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.request_payloads: dict[str, RequestPayload] = {}
        self.payload_limits = DEFAULT_LIMITS
        self._has_later_positions = False
        # vLLM's executor uses the outputs of one rank, so the others copy nothing.
        self.returns_outputs = bool(get_pp_group().is_last_rank and get_tp_group().is_first_rank)
        self._triton_cache = os.environ.get(TRITON_CACHE)
        self.use_output_copy("sync")

    def use_output_copy(self, mode: OutputCopy) -> OutputCopy:
        """Set the copy mode from the next step on; returns the effective one."""
        self.output_copy = make_output_copy(mode, self.device)
        return self.output_copy.mode

    def execution_counters(self) -> dict[str, float]:
        """Return the counters since loading."""
        return self.output_copy.counters.as_dict()

    def load_model(self, *args: object, **kwargs: object) -> None:
        if self.load_config.load_format == "auto":
            self.load_config = self.vllm_config.load_config = replace(self.load_config, load_format=WHOLE_STAGE)
        super().load_model(*args, **kwargs)

    def _dummy_run(self, *args: object, **kwargs: object) -> object:
        outputs: object = super()._dummy_run(*args, **kwargs)
        # If it compiled the model, vLLM has pointed Triton to a folder of its own, where the next process, which finds
        # the model compiled, would not look for kernels compiled from now on.
        if self._triton_cache is None:
            os.environ.pop(TRITON_CACHE, None)
        else:
            os.environ[TRITON_CACHE] = self._triton_cache
        return outputs

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:
            # vLLM allocates these in its warm-up run, which it skips in eager mode if the KV cache size is given.
            self.intermediate_tensors = self.get_model().make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def _update_states(self, scheduler_output: SchedulerOutput) -> object:
        self._scheduled = scheduler_output
        for request_id in scheduler_output.finished_req_ids:
            self._forget_request(request_id)
        for request in scheduler_output.scheduled_new_reqs:
            self._begin_request(request)
        arrived: Mapping[str, Arrived] = getattr(scheduler_output, "omni_arrived", {})
        for request_id, embeds in arrived.items():
            self.request_payloads[request_id].append_embeds(embeds.rows, is_last=embeds.is_last)
        return super()._update_states(scheduler_output)

    def _begin_request(self, request: NewRequestData) -> None:
        self.request_payloads[request.req_id] = read_request_payload(
            request.sampling_params, request.pooling_params, self.payload_limits
        )

    def _forget_request(self, request_id: str) -> None:
        self.request_payloads.pop(request_id, None)

    def _init_mrope_positions(self, req_state: Any) -> None:
        """Set M-RoPE positions (3, num_positions) from the request, if it has any; else the model computes them.

        They may extend past the prompt.
        """
        positions: torch.Tensor | None = self.request_payloads[req_state.req_id].information.get("mrope_positions")
        if positions is None:
            super()._init_mrope_positions(req_state)
            return
        req_state.mrope_positions = positions
        req_state.mrope_position_delta = int(positions.max()) + 1 - positions.shape[1]
        self._has_later_positions |= positions.shape[1] > req_state.num_prompt_tokens

    def _calc_mrope_positions(self, scheduler_output: SchedulerOutput) -> None:
        super()._calc_mrope_positions(scheduler_output)
        if not self._has_later_positions:
            return
        for span in self._spans():
            positions = self.requests[span.request_id].mrope_positions[:, span.start : span.start + span.length]
            self.mrope_positions.cpu[:, span.row : span.row + positions.shape[1]] = positions

    def _spans(self) -> list[ComputedSpan]:
        """Return this step's spans in batch order, which is final once `_update_states` has returned.

        If drafts of the step before may still be rejected, starts are final once the forward pass is launched.
        """
        spans = []
        row = 0
        lengths, drafts = self._scheduled.num_scheduled_tokens, self._scheduled.scheduled_spec_decode_tokens
        request_ids = self.input_batch.req_ids
        starts = self.input_batch.num_computed_tokens_cpu[: len(request_ids)].tolist()
        for request_id, start in zip(request_ids, starts, strict=True):
            length = lengths[request_id]
            spans.append(ComputedSpan(request_id, start, length, row, len(drafts.get(request_id, ()))))
            row += length
        return spans


class ARRunnerMixin(OmniRunnerMixin):
    """Hidden states per request through `pooler_output`; tokens, logprobs and everything else are vLLM's.

    Hidden states are gathered and copied only for requests that ask for them (`WANTS_HIDDEN_STATES`). A model
    with `fill_input_embeds` receives the input embedding of each position before a forward pass, projected once by its
    `project_input_embeds`, if it has that method. A model with `stage_output_rows` keeps the rows for the next stage
    there, in place of its last hidden states.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_states = HiddenStateTracker()
        self.graph_counters = GraphCounters()
        self._num_preemptions = 0

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        if self.cache_config.enable_prefix_caching and self.returns_outputs:
            self.hidden_states.keep_cached_rows(
                kv_cache_config.num_blocks,
                kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                self.model_config.get_hidden_size(),
                self.model_config.dtype,
            )

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> object:
        """Sample in ways that no request may ask for, with kernels to compile, only where memory is measured."""
        return None if self.cache_config.kv_cache_memory_bytes else super()._dummy_sampler_run(hidden_states)

    def capture_model(self) -> int:
        began_s = time.perf_counter()
        # Afterwards vLLM makes garbage collection look at all objects again, those of the imports among them, which the
        # fork server has excluded (`gc.freeze`), and collects twice: 2.5 s on a slow processor.
        with mark("capture"), replace_attributes(gc, unfreeze=lambda: None):
            num_bytes: int = super().capture_model()
        self.graph_counters.on_capture(num_bytes, time.perf_counter() - began_s)
        return num_bytes

    def execution_counters(self) -> dict[str, float]:
        return {**super().execution_counters(), **self.graph_counters.as_dict(), "preemptions": self._num_preemptions}

    def _update_states(self, scheduler_output: SchedulerOutput) -> object:
        self._num_preemptions += len(scheduler_output.preempted_req_ids or ())
        return super()._update_states(scheduler_output)

    def _begin_request(self, request: NewRequestData) -> None:
        super()._begin_request(request)
        if self.request_payloads[request.req_id].wants_hidden_states:
            self.hidden_states.begin(request.req_id)

    def _forget_request(self, request_id: str) -> None:
        super()._forget_request(request_id)
        self.hidden_states.forget(request_id)

    def load_model(self, *args: object, **kwargs: object) -> None:
        super().load_model(*args, **kwargs)
        model = self.get_model()
        fill_input_embeds = getattr(model, "fill_input_embeds", None)
        self._fill_input_embeds = fill_input_embeds if get_pp_group().is_first_rank else None
        self._project_input_embeds = getattr(model, "project_input_embeds", None)
        self._stage_output_rows: torch.Tensor | None = getattr(model, "stage_output_rows", None)

    def _fill_inputs(self) -> Sequence[ComputedSpan]:
        """Set the model's inputs for the next forward pass, except for token ids; return the spans that have any."""
        if self._fill_input_embeds is None:
            return ()
        step = self._spans()
        spans = [(self.request_payloads[span.request_id], span.start, span.length) for span in step]
        dtype, project = self.model_config.dtype, self._project_input_embeds
        self._fill_input_embeds(
            [payload.input_embeds(first, count, self.device, dtype, project) for payload, first, count in spans],
            [payload.tokens_without_embedding(first, count) for payload, first, count in spans],
        )
        return step

    def _model_forward(self, *args: object, **kwargs: object) -> object:
        self._fill_inputs()
        self.graph_counters.count_step()
        with mark("model forward"):
            return super()._model_forward(*args, **kwargs)

    def sample_tokens(self, grammar_output: object) -> object:
        state = self.execute_model_state
        spans = self._wanted_spans() if state is not None and self.returns_outputs else []
        # Before sampling: a drafter may overwrite the buffers.
        pending = self._start_copy(state.hidden_states, spans) if spans else None
        with mark("sampling"):
            output = super().sample_tokens(grammar_output)
        if pending is None:
            return output
        return with_payloads(output, lambda plain: self._unsent_rows(spans, pending, plain))

    def _wanted_spans(self) -> list[ComputedSpan]:
        """Return the spans of the requests that want their hidden states."""
        wanted = self.hidden_states.requests
        if not wanted:
            return []
        return [
            span._replace(sent=wanted[span.request_id], block_ids=self.requests[span.request_id].block_ids[0])
            for span in self._spans()
            if span.request_id in wanted
        ]

    def _start_copy(self, hidden_states: torch.Tensor, spans: list[ComputedSpan]) -> PendingCopy:
        """Start the step's one copy, of the rows (num_rows, hidden_size) of `spans`, before they are overwritten."""
        rows = hidden_states if self._stage_output_rows is None else self._stage_output_rows
        parts = [rows[begin:end] for begin, end in _join_spans(spans)]
        with mark("output copy"):
            return self.output_copy.start(parts[0] if len(parts) == 1 else torch.cat(parts), reused=True)

    def _unsent_rows(
        self, spans: list[ComputedSpan], pending: PendingCopy, output: ModelRunnerOutput
    ) -> dict[str, torch.Tensor]:
        """Wait for the step's rows; return by request those that have not been sent."""
        with mark("wait for output copy"):
            rows = pending.get()
        computed = list(zip(spans, rows.split([span.length for span in spans]), strict=True))
        if any(span.num_draft_tokens for span in spans):
            sampled, index = output.sampled_token_ids, output.req_id_to_index
            spans = [span.drop_rejected(len(sampled[index[span.request_id]])) for span in spans]
            computed = [(span, part[: span.length]) for span, (_, part) in zip(spans, computed, strict=True)]
        return self.hidden_states.resolve(computed)


def _join_spans(spans: list[ComputedSpan]) -> list[tuple[int, int]]:
    """Return (begin, end) of the rows of `spans`, with adjacent spans joined."""
    rows: list[tuple[int, int]] = []
    for span in spans:
        begin = rows.pop()[0] if rows and rows[-1][1] == span.row else span.row
        rows.append((begin, span.row + span.length))
    return rows
