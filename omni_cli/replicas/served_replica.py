"""One replica behind `omni serve`: an engine in a process that Ray Serve starts, watches and replaces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.errors import OmniError, StageError
from omni_cli.outputs import Event, GenerateRequest, RequestResult, StageFailed, StageInfo
from omni_cli.replicas.process import ReplicaSpec, prepare_process, this_replica

_LEASE_S = 2.0
_LAST_WORDS_S = 0.2


@dataclass(frozen=True)
class ReplicaStatus:
    """Also sent after the last event of each request. `load_error` is the reason why it cannot run requests."""

    replica: str
    stages: tuple[StageInfo, ...]
    load_error: OmniError | None = None


class Lease:
    """Actor that lives as long as the command that made it; applications on Ray Serve would outlive the command."""

    def hold(self) -> None:
        """Succeed while the actor is alive."""


async def _end_with(lease: Any) -> None:
    """Delete the application if the command ended without deleting it."""
    from ray import serve
    from ray.exceptions import ActorDiedError, RayError

    application = serve.get_replica_context().app_name
    while True:
        await asyncio.sleep(_LEASE_S)
        try:
            await lease.hold.remote()
        except ActorDiedError:
            await asyncio.to_thread(serve.delete, application, _blocking=False)
            return
        except RayError:
            continue  # temporarily unreachable, which does not prove its end


class ServedReplica:
    """Loads on creation. Does not raise if that fails, since Ray would wrap the error in its own message."""

    async def __init__(self, spec: ReplicaSpec, lease: object) -> None:  # type: ignore[misc] # Ray Serve awaits it
        """`lease` is a handle to the `Lease` of the command that owns this replica."""
        self._name = this_replica()
        self._watch = asyncio.create_task(_end_with(lease))
        self._engine = OmniLLM(prepare_process(spec), verbose=spec.verbose)
        self._load_error: OmniError | None = None
        self._is_loaded = False
        try:
            await self._engine.start(self._on_event)
        except OmniError as error:
            self._load_error = error
        else:
            self._is_loaded = True

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event | ReplicaStatus, None]:
        """Run `OmniLLM.generate`, then yield the replica's status."""
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
        """Fail the health check: after a few failures Ray Serve replaces the replica."""
        if self._load_error is not None:
            raise self._load_error

    def _on_event(self, event: Event) -> None:
        """End a replica that has lost a stage: Ray sends it no more requests and starts another one."""
        if isinstance(event, StageFailed) and self._is_loaded:
            # The errors of the stage's requests are still being sent.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)

    async def __del__(self) -> None:
        # Ray Serve awaits this before it ends the process.
        await self._engine.close()
