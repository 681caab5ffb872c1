"""Schedulers of models whose requests do not have all of their input, or need several steps for their output.

Each step of a talker needs one row from the thinker, which may not have arrived yet. The request then keeps its place
and its KV blocks while the rest of the batch continues. Requests are left out by vLLM's own means. What has
arrived is sent to the workers with a step's scheduler output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
else:
    VllmScheduler = object  # the mixin is combined with one of vLLM's schedulers below


class Arrived(NamedTuple):
    """Rows (num_rows, embedding_size) on the host, appended to the request's earlier ones; none follow if `is_last`."""

    rows: torch.Tensor
    is_last: bool


@dataclass
class PendingEmbeddings:
    """The number of one request's input embeddings, and those that have not been sent to the workers."""

    num_rows: int
    is_whole: bool = False
    unsent: list[torch.Tensor] = field(default_factory=list)

    def take(self) -> Arrived:
        arrived = Arrived(torch.cat(self.unsent), self.is_whole)
        self.unsent = []
        return arrived


class InputEmbedsSchedulerMixin(VllmScheduler):
    """Additions to vLLM's V1 scheduler; they affect only requests passed to `expect_embeds`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # Weak keys drop an entry with its request, however the request ends.
        self._pending: WeakKeyDictionary[Request, PendingEmbeddings] = WeakKeyDictionary()
        # With pipeline ranks: codes (1, num_codebooks) that the last rank predicted and the others do not have yet.
        self._codes: dict[str, torch.Tensor] = {}
        self._num_steps_under_way = 0
        self._has_scheduled = True

    @property
    def is_stalled(self) -> bool:
        """True if another step would do nothing: none is in flight, and the latest scheduled no request."""
        return not self._has_scheduled and self._num_steps_under_way == 0

    def expect_embeds(self, request_id: str, num_rows: int) -> None:
        """Register a request with `num_rows` rows, at least those of its prompt, that more rows will follow."""
        self._pending[self.requests[request_id]] = PendingEmbeddings(num_rows)

    def append_embeds(self, request_id: str, rows: torch.Tensor, *, is_last: bool) -> None:
        """Append rows (num_rows, embedding_size), unless the request has ended; steps past the last row repeat it."""
        request = self.requests.get(request_id)
        if request is not None:
            pending = self._pending[request]
            pending.num_rows += rows.shape[0]
            pending.is_whole = is_last
            pending.unsent.append(rows)

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        lacking = [request for request, pending in self._pending.items() if _lacks_rows(request, pending)]
        for request in lacking:
            # vLLM skips a running request before this step number; `schedule` first increments its counter.
            request.next_decode_eligible_step = self.current_step + 2
        # Those that were preempted would be computed up to the row that they lack.
        preempted = [request for request in self.waiting if request in lacking]
        self.waiting.remove_requests(preempted)
        output = super().schedule(*args, **kwargs)
        for request in reversed(preempted):
            self.waiting.prepend_request(request)
        scheduled = [self.requests[request_id] for request_id in output.num_scheduled_tokens]
        unsent = [request for request in scheduled if request in self._pending and self._pending[request].unsent]
        # Of other names than vLLM's; it sends its scheduler's output to every rank unchanged.
        output.omni_arrived = {request.request_id: self._pending[request].take() for request in unsent}
        output.omni_codes, self._codes = self._codes, {}
        self._has_scheduled = output.total_num_scheduled_tokens > 0
        self._num_steps_under_way += self._has_scheduled
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput, *args: object, **kwargs: object
    ) -> object:
        if scheduler_output.total_num_scheduled_tokens > 0:
            self._num_steps_under_way -= 1
            # With pipeline ranks several steps are in flight: one scheduled before this one ended may have been empty.
            self._has_scheduled = True
        if self.use_pp and model_runner_output.pooler_output:
            outputs = zip(model_runner_output.req_ids, model_runner_output.pooler_output, strict=True)
            self._codes |= {request_id: codes for request_id, codes in outputs if codes is not None}
        return super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)


def _lacks_rows(request: Request, pending: PendingEmbeddings) -> bool:
    """True if a position that the next step would compute, up to the newest token's, has no row."""
    return not pending.is_whole and request.num_tokens_with_spec + request.num_output_placeholders > pending.num_rows


class InputEmbedsScheduler(InputEmbedsSchedulerMixin, Scheduler):
    pass


class InputEmbedsAsyncScheduler(InputEmbedsSchedulerMixin, AsyncScheduler):
    pass


def make_scheduler(*, vllm_config: VllmConfig, **kwargs: object) -> InputEmbedsSchedulerMixin:
    """Build the scheduler; vLLM calls this in place of a class, once it has decided on asynchronous scheduling."""
    is_async = vllm_config.scheduler_config.async_scheduling
    return (InputEmbedsAsyncScheduler if is_async else InputEmbedsScheduler)(vllm_config=vllm_config, **kwargs)


def get_scheduler(engine: LLMEngine) -> InputEmbedsSchedulerMixin:
    """Return the scheduler of an engine whose core runs in this process, with `make_scheduler`."""
    scheduler: InputEmbedsSchedulerMixin = engine.engine_core.engine_core.scheduler
    return scheduler


class StepwiseScheduler(Scheduler):
    """Schedules all tokens of a request in its first step, and its last token again until the model has an output."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[request_id]
            request.num_computed_tokens = request.num_tokens - 1
