"""Joules per minute of sound of rounds, from counters of known power."""

from __future__ import annotations

import asyncio
import runpy
import time
from pathlib import Path

import pytest

from omni_cli.core.energy import EnergyCounter, EnergyMeter, EnergyReading

KIT = runpy.run_path(str(Path(__file__).resolve().parents[3] / "benchmarks" / "gpu" / "sound_energy.py"))
RoundEnergy, RoundMeter = KIT["RoundEnergy"], KIT["RoundMeter"]


def test_rounds_of_two_seconds_in_all_have_joules_per_minute_of_sound() -> None:
    energy = RoundEnergy()
    energy.add(EnergyReading(1.5, {"gpu0": 100.0, "gpu1": 50.0}), {"audio_s": 5.0})
    assert energy.figures() == {}
    energy.add(EnergyReading(1.5, {"gpu0": 300.0, "gpu1": 150.0}), {"audio_s": 15.0})
    assert energy.figures() == {
        "energy_j": 300.0,
        "energy_per_audio_second_j": 30.0,
        "energy_per_audio_minute_j": 1800.0,
        "gpu0.energy_j": 200.0,
        "gpu1.energy_j": 100.0,
    }


def test_a_side_of_which_a_round_has_no_joules_has_no_figure() -> None:
    energy = RoundEnergy()
    energy.add(EnergyReading(3.0, {"gpu0": 300.0}), {"audio_s": 5.0})
    energy.add(None, {"audio_s": 5.0})
    assert energy.figures() == {}


def used_by_a_round(device: str) -> tuple[EnergyReading | None, str | None]:
    async def run() -> tuple[EnergyReading | None, str | None]:
        counter = EnergyCounter("NVML counter", lambda: 100 * time.monotonic())
        meter = RoundMeter(EnergyMeter({device: counter}))
        await meter.begin()
        await asyncio.sleep(0.2)
        return await meter.end(), meter.counters.absent

    return asyncio.run(run())


def test_a_round_has_what_the_gpu_took_since_it_began() -> None:
    used, absent = used_by_a_round("gpu0")
    assert used is not None and absent is None
    assert used.power_w == pytest.approx({"gpu0": 100.0}, rel=0.05)


def test_without_a_gpu_there_are_no_joules() -> None:
    assert used_by_a_round("cpu0") == (None, "no GPU with a counter")
