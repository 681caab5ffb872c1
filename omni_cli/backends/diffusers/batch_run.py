"""Batches of requests: which may share one, and its pipeline calls, each call's outputs copied during the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from omni_cli.backends.diffusers.messages import describe_failure
from omni_cli.backends.diffusers.pipeline_run import PendingOutputs, PipelineRunner
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest, batch_key
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import OmniError

# Called with (request id, steps done, steps in all) and with each output as soon as it is whole.
OnStep = Callable[[str, int, int], None]
OnOutput = Callable[[DiffusionOutput], None]

Group = Sequence[DiffusionRequest]


class _AllAborted(Exception):
    """Raised between two steps to end a pipeline call whose requests were all aborted."""


@dataclass(frozen=True)
class _Called:
    """A group after its call: the aborted requests, and outputs or an error for the others."""

    group: Group
    aborted: Sequence[bool]
    outputs: PendingOutputs | None
    error: OmniError | None


@dataclass
class BatchRun:
    """Runs groups of requests, each in one pipeline call, and finishes every request with one output.

    `is_aborted` is called at every step; with several ranks, `agree` makes rank 0's answer that of all. `on_failure` is
    called after a pipeline raised something other than an `OmniError`.
    """

    runner: PipelineRunner
    config: DiffusionStageConfig
    is_aborted: Callable[[DiffusionRequest], bool]
    on_failure: Callable[[], None]
    on_step: OnStep | None
    finish: OnOutput
    agree: Callable[[bool], bool] = bool
    _under_way: _Called | None = None

    def run(self, groups: Iterable[Group]) -> None:
        for group in groups:
            called = self._call(group)
            self._finish_under_way()
            self._under_way = called
            self._finish_if_ready()
        self._finish_under_way()

    def _call(self, group: Group) -> _Called:
        def step(done: int, total: int) -> None:
            self._finish_if_ready()
            if self._is_unwanted(group):
                raise _AllAborted
            if self.on_step is not None:
                for request in group:
                    self.on_step(request.request_id, done, total)

        outputs, error, is_unwanted = None, None, False
        try:
            # Also before the first step: a request may have been aborted while it waited for its batch.
            is_unwanted = self._is_unwanted(group)
            if not is_unwanted:
                outputs = self.runner.run(group, step)
        except _AllAborted:
            is_unwanted = True
        except Exception as raised:  # noqa: BLE001 - pipelines raise anything; it becomes the requests' error
            error = self._error(raised, group)
        return _Called(group, [is_unwanted or self.is_aborted(request) for request in group], outputs, error)

    def _is_unwanted(self, group: Group) -> bool:
        return self.agree(all(self.is_aborted(request) for request in group))

    def _error(self, raised: Exception, group: Group) -> OmniError:
        if isinstance(raised, OmniError):
            return raised
        error = describe_failure(raised, self.config, group, has_denoised=self.runner.has_denoised)
        self.on_failure()
        return error

    def _finish_if_ready(self) -> None:
        called = self._under_way
        if called is not None and (called.outputs is None or called.outputs.ready()):
            self._finish_under_way()

    def _finish_under_way(self) -> None:
        called, self._under_way = self._under_way, None
        if called is None:
            return
        error, outputs = called.error, list[DiffusionOutput]()
        if called.outputs is not None:
            try:
                outputs = called.outputs.get()
            except Exception as raised:  # noqa: BLE001 - errors of the device during the call are raised here
                error = self._error(raised, called.group)
        for index, (request, is_aborted) in enumerate(zip(called.group, called.aborted, strict=True)):
            if is_aborted:
                self.finish(DiffusionOutput(request.request_id, "abort"))
            elif error is not None:
                self.finish(DiffusionOutput(request.request_id, "error", error=error))
            else:
                self.finish(outputs[index])


class DiffusionScheduler:
    """Groups waiting requests that may share a batch; first come, first served.

    The next batch consists of the oldest request and the oldest that can share its batch, so a request waits for at
    most as many batches as there were requests before it. Deterministic, and not thread-safe.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """`max_num_seqs` bounds a batch."""
        self.max_num_seqs = max_num_seqs
        # Insertion order is arrival order; the key is computed once, when a request arrives.
        self._waiting: dict[str, tuple[Hashable, DiffusionRequest]] = {}

    def add_request(self, request: DiffusionRequest) -> None:
        """Queue a resolved request."""
        self._waiting[request.request_id] = (batch_key(request), request)

    def schedule(self) -> tuple[DiffusionRequest, ...] | None:
        """Take the next batch, oldest request first; None if nothing waits."""
        if not self._waiting:
            return None
        oldest_key, _ = next(iter(self._waiting.values()))
        alike = [request for key, request in self._waiting.values() if key == oldest_key]
        batch = tuple(alike[: self.max_num_seqs])
        self.finish_requests(request.request_id for request in batch)
        return batch

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Drop waiting requests; ids of others are ignored."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting)
