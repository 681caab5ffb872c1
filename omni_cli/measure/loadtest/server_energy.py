"""Energy of a server's devices, as the server counts it: `omni_energy_joules_total` of its `/metrics`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from omni_cli.core.energy import SHORTEST_S, EnergyReading
from omni_cli.measure.bench.protocol import Used
from omni_cli.openai_api.client import Client, RequestFailure
from omni_cli.openai_api.routes import Route
from omni_cli.records.record import Energy

_NAME = "omni_energy_joules_total"
_LINE = re.compile(rf'^{_NAME}{{device="(\w+)",source="([\w ]+)"}} (\d+(?:\.\d+)?(?:e\+[01]\d)?)$', re.MULTILINE)


class ServerEnergy:
    """Reads the counters of one server, of which there are none before `open`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.counters = Energy(absent=f"the server's {Route.METRICS} has no {_NAME}")

    async def open(self) -> None:
        """Find the counters, and measure the power of the idle server for `SHORTEST_S`."""
        before, sources = await self._read()
        if sources:
            await asyncio.sleep(SHORTEST_S)
            after, _ = await self._read()
            self.counters = Energy(sources=sources, idle_power_w=after.since(before).power_w)

    async def read(self) -> EnergyReading:
        """Read the counters; without joules if there are none."""
        return (await self._read())[0] if self.counters.sources else EnergyReading(0.0, {})

    def get_used(self, before: EnergyReading, after: EnergyReading, get_part: Callable[[float], float]) -> Used:
        """Return the energy between two readings; `get_part(seconds)` of it is that of the answered requests."""
        seconds, joules = after.since(before)
        part = get_part(seconds) if joules else 1.0
        return Used(self.counters, seconds, {device: value * part for device, value in joules.items()})

    async def _read(self) -> tuple[EnergyReading, dict[str, str]]:
        sent_s = time.perf_counter()
        answer = await self._client.get(Route.METRICS, lambda body: body.decode(errors="replace"))
        lines = [] if isinstance(answer, RequestFailure) else _LINE.findall(str(answer[0]))
        joules = {device: float(value) for device, _, value in lines}
        reading = EnergyReading((sent_s + time.perf_counter()) / 2, joules)
        return reading, {device: source for device, source, _ in lines}
