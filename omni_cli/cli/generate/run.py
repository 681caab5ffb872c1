"""One run of `omni generate` around an engine of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omni_cli.cli.generate.base_run import BaseRun, cancel_all
from omni_cli.errors import OmniError, OutputError
from omni_cli.inputs.request_spec import BadRequest
from omni_cli.outputs import (
    GenerateRequest,
    OutputReady,
    RequestResult,
    StageTrace,
    TextDelta,
)
from omni_cli.report.records import RequestRecord

# Not needed to answer a wrong option.
if TYPE_CHECKING:
    from omni_cli.engine.omni_llm import OmniLLM  # noqa: F401 - named in the base class below

# The engine queues and batches requests itself; this bounds the decoded inputs that wait there.
MAX_REQUESTS_IN_FLIGHT = 64


@dataclass(frozen=True)
class PendingRequest:
    """A usable request; `build` gives it with its files decoded, or raises `InputError`.

    `notes` are sentences on what decoding changed, which the user has read.
    """

    request_id: str
    build: Callable[[], GenerateRequest]
    writes_files: bool
    place: str | None = None
    notes: tuple[str, ...] = ()


class GenerateRun(BaseRun["OmniLLM", PendingRequest | BadRequest]):
    """Starts the engine and sends all requests."""

    async def _work(self) -> None:
        if not self._end_bad_requests():
            return
        await self._worker.start(self._progress.handle)
        self._started = True
        self._printer.loaded(self._worker.stages)
        in_flight = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        tasks = [
            asyncio.create_task(self._run_request(index, request, in_flight))
            for index, request in enumerate(self._requests)
            if isinstance(request, PendingRequest)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)

    async def _run_request(self, index: int, pending: PendingRequest, in_flight: asyncio.Semaphore) -> None:
        async with in_flight:
            began = time.monotonic()
            traces: tuple[StageTrace, ...] = ()
            notes: tuple[str, ...] = ()
            error: OmniError | None = None
            try:
                request = await asyncio.to_thread(pending.build)
                result = await self._follow(index, request)
                traces, notes, error = result.stages, result.notes, result.error
            except OutputError:
                raise  # the folder is at fault, not the request: nothing that follows could be kept
            except OmniError as failure:
                error = failure
            self._end(
                index,
                RequestRecord(
                    pending.request_id,
                    outputs=tuple(self._written[index]),
                    stages=traces,
                    error=error,
                    place=pending.place,
                    total_s=time.monotonic() - began,
                    notes=notes,
                ),
            )

    async def _follow(self, index: int, request: GenerateRequest) -> RequestResult:
        """Show and write a request's outputs until it ends; text that becomes speech only if it is wanted."""
        wanted = request.modalities
        async with aclosing(self._worker.generate(request)) as events:
            async for event in events:
                self._progress.handle(event)
                if isinstance(event, TextDelta):
                    if wanted is None or "text" in wanted:
                        self._printer.text(event.text)
                elif isinstance(event, OutputReady):
                    self._show(index, request.request_id, event.output, wanted)
                elif isinstance(event, RequestResult):
                    return event
        raise OmniError(f"request `{request.request_id}` ended without a result")
