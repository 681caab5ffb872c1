"""Restarts of a failed stage, on a clock controlled by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import pytest

from omni_cli.core.errors import StageError, UsageError
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageFailed, StageInfo
from omni_cli.serve.errors import APIError
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.supervisor import Supervisor


class ScriptedEngine:
    """Two stages that fail on demand; `fails_to_start` is how often a restart fails."""

    def __init__(self) -> None:
        self.failed: dict[str, StageError] = {}
        self.restarted: list[tuple[str, float]] = []
        self.fails_to_start = 0
        self.closed = False
        self.asleep: set[str] = set()
        self.on_event: Callable[[Event], None] = lambda event: None

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        assert on_event is not None
        self.on_event = on_event

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        yield RequestResult(request.request_id, (), ())

    def fail(self, name: str) -> None:
        self.failed[name] = StageError(f"stage `{name}`: gone", stage=name)
        self.on_event(StageFailed(name, self.failed[name]))

    async def restart(self, name: str) -> None:
        self.restarted.append((name, asyncio.get_running_loop().time()))
        await asyncio.sleep(0)
        if self.fails_to_start:
            self.fails_to_start -= 1
            raise StageError(f"stage `{name}`: no memory", stage=name)
        del self.failed[name]
        self.asleep.discard(name)

    def check_sleep(self, level: int) -> None:
        if level == 2:
            raise UsageError("level 2 drops weights")

    async def sleep(self, level: int, *stages: str) -> None:
        self.asleep |= set(stages or ("a", "b"))

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        self.asleep.clear()
        return True

    async def close(self) -> None:
        self.closed = True

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        return tuple(StageInfo(name, "ar", 1.0, {}) for name in ("a", "b"))

    @property
    def failed_stages(self) -> Mapping[str, StageError]:
        return dict(self.failed)


@pytest.fixture
def events() -> list[str]:
    return []


def run(test: Callable[[ScriptedEngine, Supervisor], Any], events: list[str]) -> None:
    async def with_supervisor() -> None:
        engine = ScriptedEngine()
        supervisor = Supervisor(engine, on_log_event=lambda event, **fields: events.append(event), metrics=Metrics(1))
        await supervisor.start(lambda event: None)
        try:
            await test(engine, supervisor)
        finally:
            await supervisor.close()
            assert engine.closed and supervisor.state == "stopped"

    asyncio.run(with_supervisor())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def collect(supervisor: Supervisor) -> list[Event]:
    return [event async for event in supervisor.generate(GenerateRequest("r"))]


def test_a_lost_stage_is_restarted_immediately(events: list[str]) -> None:
    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        assert supervisor.state == "ready"
        engine.fail("b")
        assert (supervisor.state, supervisor.failed_stages) == ("restarting", ("b",))
        # What does not need it is still run.
        assert len(await collect(supervisor)) == 1
        await until(lambda: supervisor.state == "ready")
        assert [name for name, _ in engine.restarted] == ["b"]

    run(test, events)
    assert events == ["engine_ready", "stage_lost", "stage_ready"]


def test_each_further_try_waits_longer(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0.001)

    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        engine.fails_to_start = 9
        monkeypatch.setattr(asyncio, "sleep", sleep)
        engine.fail("a")
        await until(lambda: supervisor.state == "ready")

    run(test, events)
    tries = [seconds for seconds in waits if seconds not in (0.001,)]
    assert [seconds for seconds in tries if seconds >= 1] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert events.count("stage_not_started") == 9 and events[-1] == "stage_ready"


def test_a_stage_that_dies_as_soon_as_it_is_back_is_not_forgotten(events: list[str]) -> None:
    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        real = engine.restart
        deaths = iter([True, False])

        async def restart(name: str) -> None:
            await real(name)
            if next(deaths):
                engine.fail(name)  # before anybody has seen that it was back

        engine.restart = restart  # type: ignore[method-assign]
        engine.fail("a")
        await until(lambda: len(engine.restarted) == 2)
        await until(lambda: supervisor.state == "ready")
        assert [name for name, _ in engine.restarted] == ["a", "a"]

    run(test, events)
    assert events.count("stage_lost") == 2 and events[-1] == "stage_ready"


def test_two_stages_are_restarted_one_after_another(events: list[str]) -> None:
    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        engine.fail("a")
        engine.fail("b")
        await until(lambda: supervisor.state == "ready")
        assert sorted(name for name, _ in engine.restarted) == ["a", "b"]

    run(test, events)


def test_nothing_is_run_before_the_start_and_after_the_end() -> None:
    async def test() -> None:
        supervisor = Supervisor(ScriptedEngine(), on_log_event=lambda *_, **__: None, metrics=Metrics(1))
        for state in ("starting", "stopped"):
            with pytest.raises(APIError, match=f"the engine is {state}") as caught:
                await collect(supervisor)
            assert caught.value.status == 503 and caught.value.retry_after_s
            await supervisor.close()

    asyncio.run(test())


def test_a_stage_that_fails_asleep_is_restarted_and_sleeps_again(events: list[str]) -> None:
    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        supervisor.begin_sleep(1)
        await supervisor.sleep()
        engine.fail("a")
        assert supervisor.state == "restarting"
        await until(lambda: "stage_ready" in events)
        assert engine.asleep == {"a", "b"} and supervisor.state == "asleep"
        assert await supervisor.wake_up(None) and not engine.asleep
        assert supervisor.state == "ready"

    run(test, events)


def test_a_level_that_the_engine_cannot_do_leaves_it_awake(events: list[str]) -> None:
    async def test(engine: ScriptedEngine, supervisor: Supervisor) -> None:
        with pytest.raises(UsageError, match="level 2"):
            supervisor.begin_sleep(2)
        assert supervisor.state == "ready" and await supervisor.wake_up(None)

    run(test, events)
