"""Turns on a device at its power limit, through the real harness, with a device whose clock follows its mean power."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.planned_variants import PlannedRunner, compare_times, measure_planned

from omni_cli.measure.bench import utilisation
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.utilisation import Counters, GpuState, MachineCounters, RunSpans, UtilisationSampler
from omni_cli.records.record import DeviceLoad, Record

RUN_S = 0.1
TRUE_RATIO = 1.175
LIMIT_W = 700.0
_FOLLOWS_S = 0.1  # the device's clock follows the power of this time


class Device(MachineCounters):
    """Zeros need 400 W at the full clock. Random numbers need more, for which the clock is reduced to `1 / TRUE_RATIO`.

    `power_w` is what the sampler reads.
    """

    usable_cores = 2
    gpu_names: tuple[tuple[int, str], ...] = ((3, "H200"),)

    def __init__(self, power_w: float = 690.0, pause_s: float = 0.0) -> None:
        self.power_w, self.pause_s = power_w, pause_s
        self._slowdown = 1.0

    def run(self, slowdown: float) -> float:
        """Return the seconds of a run that slows the device down to this in the long term."""
        took_s = RUN_S * self._slowdown
        self._slowdown += (slowdown - self._slowdown) * (1 - math.exp(-took_s / _FOLLOWS_S))
        return took_s

    def read(self) -> Counters:
        state = GpuState(100.0, 1500.0, 60.0, self.power_w, max_sm_clock_mhz=1980.0, power_limit_w=LIMIT_W)
        return Counters(at_s=time.monotonic(), busy_s=0, own_s=0, stolen_s=0, gpus=(state,))


class NoDevice(Device):
    gpu_names = ()

    def read(self) -> Counters:
        return replace(super().read(), gpus=())


class Runner(PlannedRunner):
    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name)
        self._device, self._slowdown = device, 1.0 if name == "a" else TRUE_RATIO
        self.numbers: list[int] = []

    async def took_s(self, number: int, when: str) -> float:
        await asyncio.sleep(0.002 if when == "warming up" else self._device.pause_s)
        self.numbers.append(number)
        return self._device.run(self._slowdown)


def measure(tmp_path: Path, device: Device, limits: RunLimits) -> tuple[Record, dict[str, Runner]]:
    """Measure zeros (`a`) and random numbers."""
    runners = {name: Runner(name, device) for name in "ab"}
    return measure_planned(tmp_path, runners.__getitem__, device, limits), runners


def ratio(record: Record) -> float:
    return compare_times(record).ratio or 0.0


MINUTE = RunLimits(None, 1, 60.0)


def test_turns_show_a_difference_that_alternating_runs_hide(tmp_path: Path) -> None:
    alternating, _ = measure(tmp_path, Device(), replace(MINUTE, turn_s=0))
    turns, _ = measure(tmp_path, Device(), MINUTE)
    assert abs(ratio(alternating) - 1) < 0.06, "both run at the clock of their mean power"
    assert ratio(turns) == pytest.approx(TRUE_RATIO, rel=0.005)
    conditions = turns.environment["conditions"]
    each = conditions["iterations_per_turn"]
    assert (conditions["interleaving"], conditions["turn_s"]) == ("turns", 1.5) and 13 <= each <= 15
    for variant, positions in zip(turns.variants, (range(each), range(each, 2 * each)), strict=True):
        assert [sample.position for sample in variant.samples if sample.block == 0] == list(positions)
    first = [sample.number for sample in turns.variants[0].samples]
    assert first == list(range(1, len(first) + 1)), "the runs that show the power have other numbers"
    assert "turn_s" not in alternating.environment["conditions"]


@pytest.mark.parametrize("device", [Device(power_w=600.0), NoDevice()], ids=["below the limit", "no device"])
def test_single_iterations_alternate_below_the_limit(tmp_path: Path, device: Device) -> None:
    record, runners = measure(tmp_path, device, MINUTE)
    conditions = record.environment["conditions"]
    assert conditions["interleaving"] == "iterations" and "turn_s" not in conditions
    assert [sample.position for sample in record.variants[0].samples[:4]] == [0, 3, 4, 7]
    if not device.gpu_names:
        assert max(runners["a"].numbers) == len(record.variants[0].samples), "nothing runs without being counted"


def test_of_a_small_number_the_last_ones_of_each_turn_count(tmp_path: Path) -> None:
    record, _ = measure(tmp_path, Device(), replace(MINUTE, num_iters=32, time_budget_s=None))
    assert [len(variant.samples) for variant in record.variants] == [32, 32]
    assert record.environment["conditions"]["rounds_per_block"] == 2
    assert ratio(record) == pytest.approx(TRUE_RATIO, rel=0.005)


def test_the_user_decides(tmp_path: Path) -> None:
    record, _ = measure(tmp_path, NoDevice(), replace(MINUTE, turn_s=0.45))
    assert record.environment["conditions"]["iterations_per_turn"] == 5


def test_the_load_of_each_variant_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilisation, "SETTLED_S", 0.0)
    record, _ = measure(tmp_path, Device(pause_s=0.002), MINUTE)
    load = DeviceLoad(index=3, sm_clock_mhz=1500, max_sm_clock_mhz=1980, power_w=690, power_limit_w=LIMIT_W)
    assert {variant.device_load for variant in record.variants} == {(load,)}


class Readings(UtilisationSampler):
    """Readings that were taken already, 0.5 s apart: the clock falls by 1 MHz each time."""

    def __init__(self, utilisation_percent: float = 50.0) -> None:
        super().__init__()
        self._gpu_names = ((0, "GPU"),)
        self._readings = [
            Counters(at_s, 0, 0, 0, gpus=(GpuState(utilisation_percent, 1000 - at_s * 2, 60.0, at_s),))
            for at_s in (number / 2 for number in range(20))
        ]


def test_a_reading_counts_after_a_second_of_one_variant() -> None:
    spans = RunSpans(3)
    for variant, began_s, ended_s in ((0, 0, 1.0), (0, 1.05, 2.2), (1, 2.2, 4.1), (0, 4.1, 5.0), (0, 5.2, 6.6)):
        spans.ran(variant, began_s, ended_s)
    # 1.0, 1.5, 2.0 and, after the pause, 6.5; of the second variant 3.5 and 4.0.
    (first,), (second,) = (spans.device_load(variant, Readings()) for variant in (0, 1))
    assert (first.power_w, first.sm_clock_mhz) == (1.8, 996.5)
    assert (second.power_w, second.sm_clock_mhz) == (3.8, 992.5)
    assert (first.max_sm_clock_mhz, first.power_limit_w) == (None, None)
    assert spans.device_load(2, Readings()) == (), "it did not run"
    assert spans.device_load(0, Readings(utilisation_percent=0.0)) == (), "the device was idle"
