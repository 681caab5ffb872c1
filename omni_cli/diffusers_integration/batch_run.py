"""One batch: its pipeline calls one after another, each one's pictures on their way to the host during the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from omni_cli.diffusers_integration.failures import describe_failure
from omni_cli.diffusers_integration.pipeline_run import PicturesOnTheWay, PipelineRunner
from omni_cli.diffusers_integration.requests import DiffusionOutput, DiffusionRequest, FinishReason
from omni_cli.errors import DeadlineError, OmniError

# Called with (request id, steps done, steps in all) and with each output as soon as it is whole.
OnStep = Callable[[str, int, int], None]
OnOutput = Callable[[DiffusionOutput], None]

Group = Sequence[DiffusionRequest]


class _Ended(Exception):
    """Leaves a pipeline call between two steps: no request of it is wanted any more."""


@dataclass(frozen=True)
class _Called:
    """A group after its call: why each request has ended, where it has, and pictures or an error for the others."""

    group: Group
    reasons: Sequence[FinishReason | None]
    pictures: PicturesOnTheWay | None
    error: OmniError | None


class BatchRun:
    """Runs groups of requests, each in one pipeline call, and finishes every request with one output.

    `ended` says whether a request must not go on, and why: "abort", or "error" for its deadline. `on_failure` is
    called after a pipeline has raised something that is no `OmniError`.
    """

    def __init__(
        self,
        runner: PipelineRunner,
        stage: str,
        *,
        ended: Callable[[DiffusionRequest], FinishReason | None],
        on_failure: Callable[[], None],
        on_step: OnStep | None,
        finish: OnOutput,
    ) -> None:
        self._runner = runner
        self._stage = stage
        self._ended = ended
        self._on_failure = on_failure
        self._on_step = on_step
        self._finish = finish
        self._under_way: _Called | None = None

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
            if all(self._ended(request) for request in group):
                raise _Ended
            if self._on_step is not None:
                for request in group:
                    self._on_step(request.request_id, done, total)

        pictures, error = None, None
        try:
            # Before the first step as well: a request may have ended while it waited for its batch.
            if not all(self._ended(request) for request in group):
                pictures = self._runner.run(group, step)
        except _Ended:
            pass
        except Exception as raised:  # noqa: BLE001 - pipelines raise anything; it becomes the requests' error
            error = self._error(raised, group)
        return _Called(group, [self._ended(request) for request in group], pictures, error)

    def _error(self, raised: Exception, group: Group) -> OmniError:
        if isinstance(raised, OmniError):
            return raised
        error = describe_failure(raised, self._stage, group)
        self._on_failure()
        return error

    def _finish_if_ready(self) -> None:
        called = self._under_way
        if called is not None and (called.pictures is None or called.pictures.ready()):
            self._finish_under_way()

    def _finish_under_way(self) -> None:
        called, self._under_way = self._under_way, None
        if called is None:
            return
        error, pixels, times = called.error, None, None
        if called.pictures is not None:
            try:
                pixels, times = called.pictures.get()
            except Exception as raised:  # noqa: BLE001 - what the device has to say about the call comes out here
                error = self._error(raised, called.group)
        for index, (request, reason) in enumerate(zip(called.group, called.reasons, strict=True)):
            if reason is not None:
                self._finish(self._ended_output(request, reason))
            elif error is not None:
                self._finish(DiffusionOutput(request.request_id, "error", error=error))
            else:
                assert pixels is not None
                self._finish(DiffusionOutput(request.request_id, "stop", pixels[index], times))

    def _ended_output(self, request: DiffusionRequest, reason: FinishReason) -> DiffusionOutput:
        error = None
        if reason == "error":
            error = DeadlineError(
                f"stage `{self._stage}`: request {request.request_id} was not done before its deadline",
                hint="allow more time with `--timeout`, or use fewer steps or a smaller picture",
            )
        return DiffusionOutput(request.request_id, reason, error=error)
