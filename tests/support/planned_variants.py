"""Variants whose times are planned, measured by the real harness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_cli.measure.bench.harness import Harness
from omni_cli.measure.bench.protocol import Loaded, Loading, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.utilisation import MachineCounters, UtilisationSampler
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.records.record import Record
from omni_cli.records.results import Comparison
from omni_cli.stats.compare import compare_variants


class PlannedRunner:
    """Starts nothing; a subclass knows how long an iteration takes."""

    pid: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    async def start(self) -> None: ...

    async def load(self, on_loading: Callable[[Loading], None]) -> Loaded:
        return Loaded(())

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        took_s = await self.took_s(number, when)
        return Ran(e2e_s=took_s, metrics={}, work={}, output_sha256=None, accounted={}, memory={})

    async def took_s(self, number: int, when: str) -> float:
        raise NotImplementedError

    async def close(self) -> None: ...


class Quiet:
    """A watcher of nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def measure_planned(
    folder: Path, launch: Callable[[str], PlannedRunner], machine: MachineCounters, limits: RunLimits, **options: Any
) -> Record:
    """Measure the variants `a` and `b`; an interrupt ends it as it ends the command."""
    builder = RecordBuilder(
        [VariantConfig("a"), VariantConfig("b")], command=(), environment={}, workload={}, folder=folder
    )
    measurement = Harness(
        builder,
        launch=lambda index: launch("ab"[index]),
        limits=limits,
        sampler=UtilisationSampler(lambda: machine, interval_s=0.001),
        **{"decided": lambda record: False, "watcher": Quiet(), **options},
    )
    try:
        asyncio.run(measurement.run())
    except asyncio.CancelledError:
        builder.note(interrupted=True)
    return builder.record()


def compare_times(record: Record) -> Comparison:
    (found,) = compare_variants(*record.variants, same_record=True, sampling=[record.sampling], metrics=["e2e_s"])
    return found.result
