"""Energy of rounds of speech by the GPU's counter that omni reads, and joules per minute of sound; none without a GPU.

Sides that alternate share the device, so a figure is of the rounds of one side, and everything that the device draws
meanwhile is in it. The counter moves every 100 ms: it is read that long after the round before has ended and after the
round itself, so a round has up to 0.2 s of the idle device as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from omni_cli.core.energy import SHORTEST_S, EnergyMeter, EnergyReading, open_meter
from omni_cli.records.metrics import get_energy
from omni_cli.records.record import Energy

SETTLE_S = 0.1
PER_MINUTE = "energy_per_audio_minute_j"


class RoundMeter:
    """Reads the counters before and after each round."""

    def __init__(self, meter: EnergyMeter | None = None) -> None:
        meter = open_meter() if meter is None else meter
        has_gpu = any(device.startswith("gpu") for device in meter.sources)
        self._meter = meter if has_gpu else None
        self.counters = Energy(sources=meter.sources) if has_gpu else Energy(absent="no GPU with a counter")
        self._before: EnergyReading | None = None

    async def begin(self) -> None:
        self._before = await self._read()

    async def end(self) -> EnergyReading | None:
        """Return what the round took since `begin`; None without a GPU, or if its counter was lost."""
        after, before = await self._read(), self._before
        used = None if after is None or before is None else after.since(before)
        return used if used is not None and used.joules else None

    async def _read(self) -> EnergyReading | None:
        if self._meter is None:
            return None
        await asyncio.sleep(SETTLE_S)
        return await asyncio.to_thread(self._meter.read)


class RoundEnergy:
    """The rounds of one side with the same number of requests."""

    def __init__(self) -> None:
        self._seconds, self._count, self._is_whole = 0.0, 0, True
        self._joules: Counter[str] = Counter()
        self._work: Counter[str] = Counter()

    def add(self, used: EnergyReading | None, work: Mapping[str, float]) -> None:
        """Add a round; `work` is by omni's names, such as `audio_s`."""
        self._is_whole &= used is not None
        if used is not None:
            self._seconds += used.seconds
            self._count += 1
            self._joules.update(used.joules)
            self._work.update(work)

    def figures(self) -> dict[str, float]:
        """Return omni's metrics of energy and joules per minute of sound; none of less than two seconds."""
        if not self._is_whole or self._seconds < SHORTEST_S:
            return {}
        found = get_energy(self._joules, self._work, self._count)
        per_second = found.get("energy_per_audio_second_j")
        return found if per_second is None else {**found, PER_MINUTE: 60 * per_second}
