"""A scheduler for models that take several engine steps per request, so that others join and leave in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class StepwiseScheduler(Scheduler):
    """Schedules all tokens of a request in its first step, and its last token again until the model has an output."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[request_id]
            request.num_computed_tokens = request.num_tokens - 1
