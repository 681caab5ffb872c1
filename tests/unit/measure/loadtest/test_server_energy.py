"""A load test reads what a server's metrics say, and only that."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omni_cli.core.energy import EnergyMeter, EnergyReading, count_millijoules, integrate_milliwatts
from omni_cli.measure.loadtest import server_energy
from omni_cli.measure.loadtest.server_energy import ServerEnergy
from omni_cli.measure.loadtest.window import Window
from omni_cli.openai_api.client import Outcome, RequestFailure
from omni_cli.openai_api.reading import ServerAnswer
from omni_cli.serve.metrics import Metrics


def outcome(due_s: float, done_s: float) -> Outcome:
    return Outcome(due_s, due_s, done_s, ServerAnswer())


def window(*outcomes: Outcome, clients: int | None = 1, offered_s: float | None = None) -> Window:
    return Window(outcomes, 0.0, 4.0, clients, offered_s)


class Served:
    """In place of a client: answers with the text of real metrics."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self.asked = 0

    async def get(self, path: str, decode: Callable[[bytes], object]) -> Any:
        self.asked += 1
        if self._metrics is None:
            return RequestFailure("HTTP 404", "nothing there")
        assert path == "/metrics"
        return decode(await self._metrics.text()), {}


def opened(metrics: Metrics | None, monkeypatch: pytest.MonkeyPatch) -> tuple[ServerEnergy, Served]:
    monkeypatch.setattr(server_energy, "SHORTEST_S", 0.0)
    served: Any = Served(metrics)
    energy = ServerEnergy(served)
    asyncio.run(energy.open())
    return energy, served


def test_every_device_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = itertools.count(5_000_000_000_123, 1000)
    integrated = integrate_milliwatts(lambda: 0)._replace(period_s=None)
    meter = EnergyMeter({"gpu0": count_millijoules(lambda: next(millijoules)), "gpu3": integrated})
    metrics = Metrics(1)
    metrics.watch_energy(meter)
    energy, _ = opened(metrics, monkeypatch)
    assert energy.counters.sources == {"gpu0": "NVML counter", "gpu3": "integrated power"}
    assert energy.counters.idle_power_w["gpu0"] > 0 and energy.counters.absent is None
    before, after = asyncio.run(energy.read()), asyncio.run(energy.read())
    assert after.since(before).joules == pytest.approx({"gpu0": 1.0, "gpu3": 0.0})


@pytest.mark.parametrize("metrics", [Metrics(1), None])
def test_a_server_without_counters_is_asked_once(metrics: Metrics | None, monkeypatch: pytest.MonkeyPatch) -> None:
    energy, served = opened(metrics, monkeypatch)
    reading = asyncio.run(energy.read())
    assert reading.joules == {} and served.asked == 1
    used = energy.get_used(reading, reading, window(outcome(0.0, 1.0)).get_part)
    assert used.joules == {} and "has no omni_energy_joules_total" in str(used.counters.absent)


def test_answers_have_their_part() -> None:
    """Of 200 J in 4 s, requests that took 3 s of them; of an open loop, all but what unanswered ones have had."""
    closed = window(*[outcome(0.0, 3.0)] * 4, clients=4)
    opened = window(*[outcome(0.0, 3.0)] * 4, clients=None, offered_s=2.0)
    cut = replace(opened, unanswered_s=(9.0, 1.5, 1.5))  # as much as two answers
    energy = ServerEnergy(Served(None))  # type: ignore[arg-type] # asked for nothing
    before, after = EnergyReading(10.0, {"gpu0": 100.0}), EnergyReading(14.0, {"gpu0": 300.0})
    assert energy.get_used(before, after, closed.get_part).joules == {"gpu0": 150.0}
    assert energy.get_used(before, after, opened.get_part).joules == {"gpu0": 200.0}
    assert energy.get_used(before, after, cut.get_part).joules == pytest.approx({"gpu0": 200.0 * 4 / 6})
    assert energy.get_used(after, before, opened.get_part).joules == {}
