"""A scheduler for requests whose conditions arrive while they run: those that lack a row sit a step out.

A talker's step is conditioned on one row of the thinker's, which may not be there yet. Such a request keeps its place
and its KV blocks, and the others of the batch run on. vLLM's scheduler is asked to leave requests out by its own
means; nothing of it is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from omni_cli.vllm_integration.arriving_conditions import Arrived, attach_arrived, attach_codes

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
else:
    VllmScheduler = object  # the mixin is combined with one of vLLM's schedulers below


@dataclass
class Supply:
    """The condition rows of one request: how many there are, and those that the workers do not have yet."""

    num_rows: int
    is_whole: bool = False
    unsent: list[torch.Tensor] = field(default_factory=list)

    def take(self) -> Arrived:
        arrived = Arrived(torch.cat(self.unsent), self.is_whole)
        self.unsent = []
        return arrived


class ConditionedSchedulerMixin(VllmScheduler):
    """Over vLLM's V1 scheduler. Requests that `expect_conditions` was not called for are vLLM's alone."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # Ends with the request, however that ends.
        self._supplies: WeakKeyDictionary[Request, Supply] = WeakKeyDictionary()
        # With pipeline ranks: codes that the last rank has predicted, and the first one does not have yet.
        self._codes: dict[str, torch.Tensor] = {}
        self._num_steps_under_way = 0
        self._has_scheduled = True

    @property
    def is_stalled(self) -> bool:
        """True if another step would do nothing: none is under way, and a try after the last one found nothing."""
        return not self._has_scheduled and self._num_steps_under_way == 0

    def expect_conditions(self, request_id: str, num_rows: int) -> None:
        """The request has `num_rows` rows, those of its prompt at least, and more will come."""
        self._supplies[self.requests[request_id]] = Supply(num_rows)

    def append_conditions(self, request_id: str, rows: torch.Tensor, *, is_last: bool) -> None:
        """More rows (num_rows, embedding_size); after the last, further steps hold on to the last row.

        Of a request that has ended, they are dropped.
        """
        request = self.requests.get(request_id)
        if request is not None:
            supply = self._supplies[request]
            supply.num_rows += rows.shape[0]
            supply.is_whole = is_last
            supply.unsent.append(rows)

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        lacking = [request for request, supply in self._supplies.items() if _lacks_rows(request, supply)]
        for request in lacking:
            # How vLLM leaves a running request out of a step; the counter is at this step's number once it begins.
            request.next_decode_eligible_step = self.current_step + 2
        taken = [(queue, self._take_out(queue, lacking)) for queue in (self.waiting, self.skipped_waiting)]
        output = super().schedule(*args, **kwargs)
        for queue, requests in taken:
            for request in reversed(requests):
                queue.prepend_request(request)
        scheduled = [self.requests[request_id] for request_id in output.num_scheduled_tokens]
        unsent = [request for request in scheduled if request in self._supplies and self._supplies[request].unsent]
        if unsent:
            attach_arrived(output, {request.request_id: self._supplies[request].take() for request in unsent})
        if self._codes:
            attach_codes(output, self._codes)
            self._codes = {}
        self._has_scheduled = output.total_num_scheduled_tokens > 0
        self._num_steps_under_way += self._has_scheduled
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput, *args: object, **kwargs: object
    ) -> object:
        if scheduler_output.total_num_scheduled_tokens > 0:
            self._num_steps_under_way -= 1
            # Pipeline ranks have several steps under way: a try that found nothing may have come before this one's end.
            self._has_scheduled = True
        if self.use_pp and model_runner_output.pooler_output:
            made = zip(model_runner_output.req_ids, model_runner_output.pooler_output, strict=True)
            self._codes |= {request_id: codes for request_id, codes in made if codes is not None}
        return super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)

    @staticmethod
    def _take_out(queue: Any, lacking: list[Request]) -> list[Request]:
        """Preempted requests that lack a row, out of a queue of waiting ones: they would be computed up to that row."""
        out = [request for request in queue if request in lacking]
        if out:
            queue.remove_requests(out)
        return out


def _lacks_rows(request: Request, supply: Supply) -> bool:
    """True if a position that the next step would compute has no row: all up to the newest token's."""
    return not supply.is_whole and request.num_tokens_with_spec + request.num_output_placeholders > supply.num_rows


class ConditionedScheduler(ConditionedSchedulerMixin, Scheduler):
    pass


class ConditionedAsyncScheduler(ConditionedSchedulerMixin, AsyncScheduler):
    pass


def make_scheduler(*, vllm_config: VllmConfig, **kwargs: object) -> ConditionedSchedulerMixin:
    """For `scheduler_cls` of vLLM's engine arguments, which vLLM calls once it knows if it schedules asynchronously."""
    is_async = vllm_config.scheduler_config.async_scheduling
    return (ConditionedAsyncScheduler if is_async else ConditionedScheduler)(vllm_config=vllm_config, **kwargs)


def scheduler_of(engine: LLMEngine) -> ConditionedSchedulerMixin:
    """The scheduler of an engine whose core runs in this process and was given `make_scheduler`."""
    scheduler: ConditionedSchedulerMixin = engine.engine_core.engine_core.scheduler
    return scheduler
