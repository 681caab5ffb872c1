"""Schedule diffusion requests into batches. Method names are those of vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from omni_cli.diffusers_integration.requests import (
    DiffusionModelOutput,
    DiffusionRequest,
    DiffusionSchedulerOutput,
    batch_key,
)


class DiffusionScheduler:
    """Groups requests that may share a batch; first come, first served.

    The next batch consists of the oldest waiting request and the oldest that can share its batch, so a request waits
    for at most as many batches as there were requests before it. Deterministic, and not thread-safe.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """`max_num_seqs` bounds a batch; raises `ValueError` if it is less than 1."""
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, not {max_num_seqs}")
        self.max_num_seqs = max_num_seqs
        # Insertion order is arrival order; the key is computed once, when a request arrives.
        self._waiting: dict[str, tuple[Hashable, DiffusionRequest]] = {}
        self._running: dict[str, DiffusionRequest] = {}

    def add_request(self, request: DiffusionRequest) -> None:
        """Queue a resolved request; raises `ValueError` if its id is already waiting or running."""
        if request.request_id in self._waiting or request.request_id in self._running:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        self._waiting[request.request_id] = (batch_key(request), request)

    def schedule(self) -> DiffusionSchedulerOutput | None:
        """Move the next batch from waiting to running; None if nothing waits."""
        if not self._waiting:
            return None
        oldest_key, _ = next(iter(self._waiting.values()))
        batch: list[DiffusionRequest] = []
        for key, request in self._waiting.values():
            if key == oldest_key:
                batch.append(request)
            if len(batch) == self.max_num_seqs:
                break
        for request in batch:
            del self._waiting[request.request_id]
            self._running[request.request_id] = request
        return DiffusionSchedulerOutput(tuple(batch))

    def update_from_output(self, output: DiffusionModelOutput) -> None:
        """Drop the requests of a finished batch."""
        for item in output.outputs:
            self._running.pop(item.request_id, None)

    def finish_requests(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Drop waiting and running requests; unknown ids, of ended requests, are ignored.

        Returns the ids that were running, in the given order; the executor must abort those
        (`DiffusersPipelineExecutor.abort_requests`).
        """
        running = []
        for request_id in request_ids:
            self._waiting.pop(request_id, None)
            if self._running.pop(request_id, None) is not None:
                running.append(request_id)
        return tuple(running)

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting or self._running)
