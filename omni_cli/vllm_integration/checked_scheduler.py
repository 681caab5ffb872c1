"""A scheduler whose plans are looked at before anything runs them.

What is wrong with one request's part of a plan is that request's failure, and the rest of the plan is run. The workers
look again (`OmniRunnerMixin`): a plan that they cannot follow ends the stage.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.engine.llm_engine import LLMEngine
else:
    VllmScheduler = object  # which of vLLM's schedulers is behind the mixin is said where it is used

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CheckedSchedulerMixin(VllmScheduler):
    """Over vLLM's V1 scheduler. `take_refused` has to be asked after each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._at_workers: set[str] = set()
        self._refused: dict[str, str] = {}

    def take_refused(self) -> dict[str, str]:
        """Requests that have ended because of what was planned for them, and what that was."""
        refused, self._refused = self._refused, {}
        return refused

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        self._at_workers -= output.finished_req_ids
        new = {request.req_id for request in output.scheduled_new_reqs}
        wrong = {
            request_id: reason
            for request_id, count in output.num_scheduled_tokens.items()
            if (reason := self._mistake(request_id, count, new)) is not None
        }
        if wrong:
            self._refuse(output, wrong)
        self._at_workers.update(request.req_id for request in output.scheduled_new_reqs)
        return output

    def _mistake(self, request_id: str, num_tokens: int, new: set[str]) -> str | None:
        if request_id not in self.requests:
            return "a step was planned for it, and nobody asked for it"
        if request_id not in new and request_id not in self._at_workers:
            return "a step was planned for it that no worker knows the beginning of"
        return None if num_tokens > 0 else "a step was planned for it with none of its tokens"

    def _refuse(self, output: SchedulerOutput, wrong: Mapping[str, str]) -> None:
        for request_id, reason in wrong.items():
            logger.error("request %s: %s", request_id, reason)
            request = self.requests.get(request_id)
            if request is not None:
                # What is not run does not come back.
                request.num_in_flight_tokens -= output.num_scheduled_tokens[request_id]
                self._refused[request_id] = reason
        leave_out(output, wrong)
        self.finish_requests(list(wrong), RequestStatus.FINISHED_ABORTED)


S = TypeVar("S", bound=CheckedSchedulerMixin)


class CheckedScheduler(CheckedSchedulerMixin, Scheduler):
    pass


class CheckedAsyncScheduler(CheckedSchedulerMixin, AsyncScheduler):
    pass


def scheduler_maker(plain: type[S], asynchronous: type[S]) -> Callable[..., S]:
    """For `scheduler_cls` of vLLM's engine arguments: whether it schedules asynchronously is settled by then."""

    def make(*, vllm_config: VllmConfig, **kwargs: Any) -> S:
        is_async = vllm_config.scheduler_config.async_scheduling
        return (asynchronous if is_async else plain)(vllm_config=vllm_config, **kwargs)

    return make


make_scheduler = scheduler_maker(CheckedScheduler, CheckedAsyncScheduler)


def scheduler_of(engine: LLMEngine) -> Any:
    """The scheduler of an engine whose core runs in this process, of the class that its `scheduler_cls` has made."""
    return engine.engine_core.engine_core.scheduler


def leave_out(output: SchedulerOutput, request_ids: Mapping[str, Any]) -> None:
    """Take requests out of a plan."""
    output.num_scheduled_tokens = _without(output.num_scheduled_tokens, request_ids)
    output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
    output.scheduled_new_reqs = [item for item in output.scheduled_new_reqs if item.req_id not in request_ids]
    output.scheduled_cached_reqs = _kept(output.scheduled_cached_reqs, request_ids)
    output.scheduled_spec_decode_tokens = _without(output.scheduled_spec_decode_tokens, request_ids)
    output.scheduled_encoder_inputs = _without(output.scheduled_encoder_inputs, request_ids)


def _kept(cached: CachedRequestData, request_ids: Mapping[str, Any]) -> CachedRequestData:
    places = [place for place, request_id in enumerate(cached.req_ids) if request_id not in request_ids]

    def at(values: list[T]) -> list[T]:
        return [values[place] for place in places] if values else values

    return dataclasses.replace(
        cached,
        req_ids=at(cached.req_ids),
        resumed_req_ids=cached.resumed_req_ids - request_ids.keys(),
        new_token_ids=at(cached.new_token_ids),
        all_token_ids=_without(cached.all_token_ids, request_ids),
        new_block_ids=at(cached.new_block_ids),
        num_computed_tokens=at(cached.num_computed_tokens),
        num_output_tokens=at(cached.num_output_tokens),
    )


def _without(values: dict[str, T], request_ids: Mapping[str, Any]) -> dict[str, T]:
    return {request_id: value for request_id, value in values.items() if request_id not in request_ids}
