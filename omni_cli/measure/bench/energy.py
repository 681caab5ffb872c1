"""Energy of variants: counters are read between the turns of variants, never within the time of an iteration."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from omni_cli.core.energy import SHORTEST_S, EnergyMeter, EnergyReading
from omni_cli.measure.bench.protocol import Used
from omni_cli.measure.bench.record_builder import Measured
from omni_cli.records.metrics import ENERGY, get_energy
from omni_cli.records.record import Energy, Sample
from omni_cli.stats.blocks import lasted_s

SHORTEST_TURN_S = 1.0
"""Shorter turns are not read: at either edge, 0.1 s of another variant may be counted. Their length is what warm-up
shows, since a choice by their own would take the slow ones."""

_TOO_SHORT = "its turns or windows are too short for the counters"


@dataclass
class _Turn:
    """Iterations of one variant, one after the other; `start` is None if the counters were not read."""

    variant: int
    began_s: float
    start: EnergyReading | None
    samples: list[Sample] = field(default_factory=list)


@dataclass
class _Account:
    """The iterations of a variant that are in no figure yet."""

    seconds: float = 0.0
    count: int = 0
    joules: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)

    def add(self, used: EnergyReading, samples: Sequence[Sample]) -> None:
        if used.joules:
            self.seconds += used.seconds
            self.count += len(samples)
            self.joules.update(used.joules)
            for sample in samples:
                images = round(sample.metrics.get("images_per_second", 0.0) * lasted_s(sample))
                self.work.update({**sample.work, "images": images})

    def add_figures(self, measured: Measured) -> None:
        """Add the figures to the variant's last sample: they are of it and the ones before."""
        last = measured.samples[-1]
        metrics = {**last.metrics, **get_energy(self.joules, self.work, self.count)}
        measured.samples[-1] = msgspec.structs.replace(last, metrics=metrics)


class EnergyLedger:
    """Attributes joules to variants: those of `meter` during their turns, and those that windows of servers report.

    A figure is of all turns since the last one, once each variant has `SHORTEST_S` of them, and is a metric of the
    variant's last sample. A turn of a single variant goes on from block to block until it is that long. `typical_s` are
    the seconds of an iteration.
    """

    def __init__(self, measured: Sequence[Measured], meter: EnergyMeter | None, typical_s: Mapping[int, float]) -> None:
        self._measured = measured
        self._typical_s = typical_s
        self._counters = None if meter is None else Energy(sources=meter.sources, absent=meter.absent)
        self._meter = meter if meter is not None and meter.sources else None
        self._accounts = [_Account() for _ in measured]
        self._longest = [0] * len(measured)  # turns, in iterations
        self._turn: _Turn | None = None

    async def measure_idle(self) -> None:
        """Measure the power of the devices for `SHORTEST_S`, before anything is loaded."""
        if self._meter is not None:
            before = await asyncio.to_thread(self._meter.read)
            await asyncio.sleep(SHORTEST_S)
            idle = (await asyncio.to_thread(self._meter.read)).since(before)
            self._counters = Energy(sources=self._meter.sources, idle_power_w=idle.power_w)

    async def begin(self, variant: int) -> None:
        """Note that an iteration of the variant is next."""
        if self._meter is not None and (self._turn is None or self._turn.variant != variant):
            await self.end_turn()
            # Reading takes milliseconds, which short turns would show.
            is_read = not self._longest[variant] or self._is_enough(variant, self._longest[variant])
            start = await asyncio.to_thread(self._meter.read) if is_read else None
            self._turn = _Turn(variant, time.monotonic(), start)

    def _is_enough(self, variant: int, count: int) -> bool:
        """Return whether a turn of so many iterations is worth reading; that of a single variant ends when it is."""
        is_single = self._meter is not None and len(self._accounts) == 1
        return is_single or self._typical_s[variant] * count >= SHORTEST_TURN_S

    def add(self, variant: int, sample: Sample, used: Used | None) -> None:
        """Note the iteration that has just ended; a window of a server may have joules of its own."""
        if self._turn is not None:
            self._turn.samples.append(sample)
        if used is not None:
            self._measured[variant].energy = used.counters
            if self._is_enough(variant, 1):
                self._accounts[variant].add(EnergyReading(used.seconds, used.joules), [sample])

    async def end_turn(self) -> None:
        """End a turn: what follows is no iteration, or one of another variant."""
        turn, self._turn = self._turn, None
        if turn is not None and self._meter is not None:
            count = len(turn.samples)
            self._longest[turn.variant] = max(count, self._longest[turn.variant])
            if turn.start is not None and self._is_enough(turn.variant, count):
                used = (await asyncio.to_thread(self._meter.read)).since(turn.start)
                self._accounts[turn.variant].add(used, turn.samples)

    async def block_ended(self) -> None:
        """Add figures to the last samples if there is enough of each variant."""
        turn = self._turn
        if turn is not None and (len(self._accounts) > 1 or time.monotonic() - turn.began_s >= SHORTEST_S):
            await self.end_turn()
        if all(account.seconds >= SHORTEST_S for account in self._accounts):
            for measured, account in zip(self._measured, self._accounts, strict=True):
                account.add_figures(measured)
            self._accounts = [_Account() for _ in self._measured]
        self._note_absent()

    def end_early(self) -> None:
        """Add figures to variants that have none yet; the turn that was interrupted is in no figure."""
        for measured, account in zip(self._measured, self._accounts, strict=True):
            if account.seconds >= SHORTEST_S and not _has_figure(measured):
                account.add_figures(measured)
        self._note_absent()

    def _note_absent(self) -> None:
        for measured in self._measured:
            counters = self._counters or measured.energy
            if counters is not None:
                lost = None if self._meter is None else self._meter.absent
                absent = lost or (None if _has_figure(measured) else counters.absent or _TOO_SHORT)
                measured.energy = msgspec.structs.replace(counters, absent=absent)


def _has_figure(measured: Measured) -> bool:
    return any(ENERGY in sample.metrics for sample in measured.samples)
