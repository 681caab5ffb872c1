"""One replica behind `omni serve`: an engine in a process that Ray Serve starts, watches and replaces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.errors import OmniError, StageError
from omni_cli.outputs import Event, GenerateRequest, RequestResult, StageInfo
from omni_cli.replicas.process import ReplicaSpec, prepare_process, this_replica


@dataclass(frozen=True)
class ReplicaStatus:
    """Sent after the last event of each request too. `load_error` is why it can run nothing."""

    replica: str
    stages: tuple[StageInfo, ...]
    load_error: OmniError | None = None


class ServedReplica:
    """Loads when it is made; does not raise where that fails, for Ray would only say so in its own words."""

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc] # Ray Serve awaits it
        self._name = this_replica()
        self._engine = OmniLLM(prepare_process(spec), verbose=spec.verbose)
        self._load_error: OmniError | None = None
        try:
            await self._engine.start()
        except OmniError as error:
            self._load_error = error

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event | ReplicaStatus, None]:
        """`OmniLLM.generate`, and how the replica is then."""
        if self._load_error is not None:
            stage = self._engine.config.stages[0].name
            yield RequestResult(request.request_id, (), (), StageError(self._load_error.message, stage=stage))
            return
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                yield event
        yield self.status()

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(self._name, self._engine.stages, self._load_error)

    def check_health(self) -> None:
        """Ray Serve replaces a replica for which this raises a few times: one that lacks a stage."""
        if self._load_error is not None:
            raise self._load_error
        for error in self._engine.failed_stages.values():
            raise StageError(error.message, stage=error.stage)

    async def __del__(self) -> None:
        # Ray Serve awaits it before it ends the process.
        with contextlib.suppress(asyncio.CancelledError):
            await self._engine.close()
