"""Both orders of loading, through the real harness: on a CPU the first-loaded of equal processes is slower for as long
as it lives."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pytest
from support.planned_variants import PlannedRunner, Quiet, compare_times, measure_planned

from omni_cli.measure.bench.harness import State
from omni_cli.measure.bench.schedule import Halves, RunLimits
from omni_cli.measure.bench.utilisation import Counters, GpuState, MachineCounters
from omni_cli.records.record import Record
from omni_cli.stats.comparable import disturbances

BIAS, NOISE = 0.02, 0.004
COUNT, MINUTE = RunLimits(64, 1, None), RunLimits(None, 1, 60.0)


class Machine(MachineCounters):
    """Counts the loads; of the processes that live, the first is slower. A block can be interrupted."""

    usable_cores = 2

    def __init__(self, *gpu_names: tuple[int, str], interrupted: str = "") -> None:
        self.gpu_names = gpu_names
        self.interrupted = interrupted
        self.living: list[Process] = []
        self.loads: list[str] = []
        self.noise = np.random.default_rng(0)

    def read(self) -> Counters:
        gpus = tuple(GpuState(0.0, 1000.0, 40.0, 100.0) for _ in self.gpu_names)
        return Counters(at_s=time.monotonic(), busy_s=0, own_s=0, stolen_s=0, gpus=gpus)


class Process(PlannedRunner):
    pid: int | None = os.getpid()

    def __init__(self, name: str, machine: Machine, slowdown: float) -> None:
        super().__init__(name)
        self._machine, self._slowdown = machine, slowdown

    async def start(self) -> None:
        self._machine.living.append(self)
        self._machine.loads.append(self.name)

    async def took_s(self, number: int, when: str) -> float:
        if when == self._machine.interrupted:
            raise asyncio.CancelledError
        bias = BIAS if self is self._machine.living[0] else 0.0
        return 0.5 * self._slowdown * (1 + bias) * (1 + NOISE * self._machine.noise.standard_normal())

    async def close(self) -> None:
        self._machine.living.remove(self)


class Server(Process):
    pid = None


def measure(
    tmp_path: Path, limits: RunLimits, machine: Machine, *, kind: type[Process] = Process, slowdown: float = 1.0
) -> Record:
    """Measure `a` and `b`, which takes `slowdown` times as long, until the interval decides."""
    record = measure_planned(
        tmp_path,
        lambda name: kind(name, machine, slowdown if name == "b" else 1.0),
        machine,
        limits,
        decided=lambda record: compare_times(record).verdict != "inconclusive",
        both_orders=True,
    )
    assert machine.living == [], "whatever was loaded has ended"
    return record


def orders(record: Record) -> int | None:
    return record.environment["conditions"].get("loading_orders")


def num_blocks(record: Record) -> int:
    return len({sample.block for sample in record.variants[0].samples})


def test_what_the_order_adds_cancels_and_widens_nothing(tmp_path: Path) -> None:
    machine = Machine()
    record = measure(tmp_path, COUNT, machine)
    assert machine.loads == ["a", "b", "b", "a"]
    assert (num_blocks(record), record.sampling.reversed_from, orders(record)) == (32, 16, 2)
    found = compare_times(record)
    assert found.verdict == "no difference" and abs(found.ratio - 1) < 0.002
    assert found.ci95[1] - found.ci95[0] < 0.01 < BIAS
    assert disturbances(record) == ()


def test_a_run_that_is_decided_early_has_as_many_blocks_of_either_order(tmp_path: Path) -> None:
    machine = Machine()
    record = measure(tmp_path, MINUTE, machine, slowdown=1.1)
    assert machine.loads == ["a", "b", "b", "a"]
    assert (num_blocks(record), record.sampling.reversed_from, record.sampling.looks) == (18, 9, (18, 28))
    assert compare_times(record).ratio == pytest.approx(1.1, rel=0.003) and compare_times(record).verdict == "slower"


@pytest.mark.parametrize(
    ("block", "loaded", "reversed_from"),
    [(9, ["a", "b"], None), (16, ["a", "b", "b", "a"], None), (22, ["a", "b", "b", "a"], 16)],
)
def test_an_interrupt_keeps_what_either_half_has(
    tmp_path: Path, block: int, loaded: list[str], reversed_from: int | None
) -> None:
    machine = Machine(interrupted=f"block {block}")
    record = measure(tmp_path, COUNT, machine)
    assert machine.loads == loaded and num_blocks(record) == block
    assert (record.sampling.reversed_from or None) == reversed_from and orders(record) == (2 if reversed_from else 1)
    biased = 1 / (1 + BIAS) if reversed_from is None else 1.0
    assert compare_times(record).ratio == pytest.approx(biased, rel=0.003), "sixteen blocks count as much as six"
    assert [(item.kind, item.variant) for item in disturbances(record)] == [("one order", "a")] * (not reversed_from)


@pytest.mark.parametrize(
    ("machine", "kind", "limits", "noted"),
    [
        (Machine((0, "H200")), Process, COUNT, None),
        (Machine(), Server, COUNT, None),
        (Machine(), Process, RunLimits(15, 1, None), 1),
    ],
    ids=["GPU", "servers", "too few iterations"],
)
def test_nothing_is_loaded_again_where_it_does_not_help(
    tmp_path: Path, machine: Machine, kind: type[Process], limits: RunLimits, noted: int | None
) -> None:
    record = measure(tmp_path, limits, machine, kind=kind)
    assert machine.loads == ["a", "b"] and not record.sampling.reversed_from
    assert orders(record) == noted and len(disturbances(record)) == (noted or 0)


def test_half_time_is_half_of_the_blocks_or_of_the_time() -> None:
    first, second = Halves(30, (20, 30), None), Halves(30, (20, 30), 10)
    assert [first.is_over(done, 0.2) for done in (14, 15)] == [False, True]
    assert [first.is_over(4, share) for share in (0.5, 0.51)] == [False, True]
    assert [second.is_over(29, share) for share in (1.0, 1.01)] == [False, True]
    assert [done for done in range(31) if first.is_look(done)] == [10, 15]
    assert [done for done in range(31) if second.is_look(done)] == [20, 30]
    late = Halves(30, (20, 30), 12)
    assert [done for done in range(31) if late.is_look(done)] == [30], "at 20 blocks the second half has eight"
    assert [done for done in range(31) if Halves(30, (20, 30)).is_look(done)] == [20, 30], "without halves"


class Slow(PlannedRunner):
    """Takes longer once it is measured."""

    async def took_s(self, number: int, when: str) -> float:
        took_s = 0.002 if when == "warming up" else 0.02
        await asyncio.sleep(took_s)
        return took_s


class Watcher(Quiet):
    def __init__(self) -> None:
        self.states: list[State] = []

    def block_done(self, state: State) -> None:
        self.states.append(state)


def test_no_more_time_is_left_than_the_budget(tmp_path: Path) -> None:
    watcher = Watcher()
    measure_planned(tmp_path, Slow, Machine(), RunLimits(None, 1, 1.0), watcher=watcher)
    first = watcher.states[0]
    assert first.planned_blocks > 2 * len(watcher.states), "more than there is time for"
    assert max(state.left_s for state in watcher.states) < 1.0
