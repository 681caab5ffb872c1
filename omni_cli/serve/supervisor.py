"""Keep an engine's stages running: restart those that ended or that the engine has given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, Protocol

from omni_cli.core.errors import OmniError, StageError
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, StageFailed, StageInfo
from omni_cli.serve.errors import unavailable
from omni_cli.serve.metrics import Metrics

LONGEST_BACKOFF_S = 60.0
# A stage that has run this long since its last restart is not in a crash loop.
STABLE_AFTER_S = 300.0


class Engine(Protocol):
    """The required part of `omni_cli.engine.omni_llm.OmniLLM`."""

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    async def restart(self, name: str) -> None: ...

    def check_sleep(self, level: int) -> None: ...

    async def sleep(self, level: int, *stages: str) -> None: ...

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool: ...

    async def close(self) -> None: ...

    @property
    def stages(self) -> tuple[StageInfo, ...]: ...

    @property
    def failed_stages(self) -> Mapping[str, StageError]: ...


EngineState = Literal["starting", "ready", "restarting", "asleep", "stopped"]
_LOADED_STATES = ("ready", "asleep")


class Supervisor:
    """Owns an engine. `on_log_event(event, **fields)` receives its events, for the log.

    A failed stage loses only the requests in it; those in other stages continue, and fail only if they reach it before
    it is restarted.
    """

    def __init__(self, engine: Engine, *, on_log_event: Callable[..., None], metrics: Metrics) -> None:
        self._engine = engine
        self._log = on_log_event
        self._metrics = metrics
        self._state: EngineState = "starting"
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # One at a time: stages that share a device check for free memory while they load.
        self._restarting = asyncio.Lock()
        self._restarted_at: dict[str, float] = {}
        self._backoff_s: dict[str, float] = {}
        self._switching = asyncio.Lock()
        self._falling_asleep: asyncio.Task[None] | None = None
        self._sleep_level = 1
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Stages that have been loaded, even if they have failed since."""
        return self._engine.stages

    @property
    def failed_stages(self) -> tuple[str, ...]:
        return tuple(self._engine.failed_stages) if self._state in _LOADED_STATES else ()

    @property
    def is_asleep(self) -> bool:
        """True from `begin_sleep` until all stages are awake again."""
        return self._state == "asleep"

    @property
    def state(self) -> EngineState:
        return "restarting" if self.failed_stages else self._state

    async def start(self, on_event: Callable[[Event], None]) -> None:
        """Load all stages; raises `OmniError` if that fails, since another attempt would fail as well."""

        def handle(event: Event) -> None:
            on_event(event)
            if isinstance(event, StageFailed) and self._state in _LOADED_STATES:
                self._log("stage_lost", stage=event.name, reason=event.error.message, details=event.error.details)
                if event.name not in self._tasks:
                    self._tasks[event.name] = asyncio.create_task(self._bring_back(event.name))

        await self._engine.start(handle)
        self._state = "ready"
        self._metrics.ready.set_function(lambda: self.state == "ready")
        self._log("engine_ready", stages={stage.name: round(stage.load_s, 3) for stage in self.stages})

    async def close(self) -> None:
        """Stop the engine and all its processes."""
        self._state = "stopped"
        tasks = [*self._tasks.values(), *([self._falling_asleep] if self._falling_asleep else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Run `OmniLLM.generate`; raises `APIError` (503) while there is no engine."""
        self.check_ready()
        self._num_running += 1
        self._idle.clear()
        try:
            async with aclosing(self._engine.generate(request)) as events:
                async for event in events:
                    yield event
        finally:
            self._num_running -= 1
            if self._num_running == 0:
                self._idle.set()

    def check_ready(self) -> None:
        """Raise `APIError` (503) while requests are refused."""
        if self._state != "ready":
            hint = "; `POST /wake_up` wakes it" if self.is_asleep else ""
            raise unavailable(f"the engine is {self._state}{hint}")

    def begin_sleep(self, level: int) -> None:
        """Refuse requests from now on; raises `UsageError` if the engine cannot sleep at this level."""
        self._engine.check_sleep(level)
        if not self.is_asleep:
            self.check_ready()
            self._sleep_level = level
        self._state = "asleep"

    def sleep(self) -> Awaitable[None]:
        """After `begin_sleep`, wait for requests that run, and put all stages to sleep.

        Raises the `OmniError` of a stage that fails; it is restarted and sleeps then.
        """
        # It goes on if the client that asked for it leaves.
        self._falling_asleep = asyncio.create_task(self._fall_asleep())
        return asyncio.shield(self._falling_asleep)

    async def _fall_asleep(self) -> None:
        async with self._switching:
            await self._idle.wait()
            if self.is_asleep:  # not woken before its turn
                await self._engine.sleep(self._sleep_level)

    async def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Put back what vLLM's `tags` name, by default all; return True if the engine takes requests again."""
        async with self._switching:
            if self.is_asleep and await self._engine.wake_up(tags):
                self._state = "ready"
            return not self.is_asleep

    async def _bring_back(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            while name in self._engine.failed_stages:
                await asyncio.sleep(self._next_backoff_s(name, loop.time()))
                self._metrics.restarts.labels(name).inc()
                try:
                    async with self._restarting:
                        await self._engine.restart(name)
                        if self.is_asleep:
                            await self._engine.sleep(self._sleep_level, name)
                    self._log("stage_ready", stage=name)
                except OmniError as error:
                    self._log("stage_not_started", stage=name, reason=error.message)
                self._restarted_at[name] = loop.time()
        finally:
            del self._tasks[name]

    def _next_backoff_s(self, name: str, now: float) -> float:
        """Return no delay at first, then 1 s, doubling each time until the stage has been stable for a while."""
        last = self._restarted_at.get(name)
        if last is None or now - last > STABLE_AFTER_S:
            self._backoff_s[name] = 0.5
            return 0.0
        self._backoff_s[name] = min(2 * self._backoff_s[name], LONGEST_BACKOFF_S)
        return self._backoff_s[name]
