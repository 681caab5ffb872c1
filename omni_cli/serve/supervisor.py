"""Keeps an engine running: starts it, notices its end, starts another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum
from typing import Protocol

from omni_cli.errors import OmniError, StageError
from omni_cli.outputs import Event, GenerateRequest, StageFailed, StageInfo
from omni_cli.serve.errors import unavailable
from omni_cli.serve.metrics import Metrics

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0


class Engine(Protocol):
    """What is needed of `omni_cli.engine.omni_llm.OmniLLM`."""

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...

    @property
    def stages(self) -> tuple[StageInfo, ...]: ...


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class Supervisor:
    """Owns the engine. `tell(event, **fields)` gets what happens to it, for the log.

    One engine at a time. It is replaced as a whole: the stages hand requests on to each other, so one without its
    neighbour is of no use.
    """

    def __init__(self, make_engine: Callable[[], Engine], tell: Callable[..., None], metrics: Metrics) -> None:
        self._make_engine = make_engine
        self._tell = tell
        self._metrics = metrics
        self._engine: Engine | None = None
        self._lost: asyncio.Future[StageError] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._state = State.STARTING

    @property
    def state(self) -> State:
        return self._state

    def _set_state(self, state: State) -> None:
        self._state = state
        self._metrics.ready.set(state is State.READY)

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        return self._engine.stages if self._engine is not None else ()

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        """Start the first engine; raises `OmniError` where that fails, for then another try would fail as well."""
        await self._start_engine(on_event)
        self._watch = asyncio.create_task(self._replace_lost_engines())

    async def close(self) -> None:
        """Stop the engine and every process of it."""
        self._set_state(State.STOPPED)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._close_engine()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """`OmniLLM.generate`; raises `APIError` (503) while there is no engine."""
        if self.state is not State.READY or self._engine is None:
            raise unavailable(f"the engine is {self.state.value}")
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                yield event

    async def _start_engine(self, on_event: Callable[[Event], None] | None = None) -> None:
        lost: asyncio.Future[StageError] = asyncio.get_running_loop().create_future()

        def handle(event: Event) -> None:
            if isinstance(event, StageFailed) and not lost.done():
                lost.set_result(event.error)
            if on_event is not None:
                on_event(event)

        engine = self._make_engine()
        await engine.start(handle)
        self._engine, self._lost = engine, lost
        self._set_state(State.READY)
        self._tell("engine_ready", stages={stage.name: round(stage.load_s, 3) for stage in engine.stages})

    async def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _replace_lost_engines(self) -> None:
        while True:
            assert self._lost is not None
            error = await self._lost
            self._set_state(State.RESTARTING)
            self._tell("engine_lost", stage=error.stage, reason=error.message, details=error.details)
            # The requests inside have been told already; those of the other stages end with them.
            await self._close_engine()
            await self._start_again()

    async def _start_again(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            self._metrics.restarts.inc()
            try:
                await self._start_engine()
                return
            except OmniError as error:
                self._tell("engine_not_started", reason=error.message, retry_in_s=backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
