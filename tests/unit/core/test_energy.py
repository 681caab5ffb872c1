"""Counters of energy: of NVML, by integration, of RAPL in a given folder; and which of them there are."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_cli.core.energy import (
    EnergyMeter,
    EnergyReading,
    count_millijoules,
    count_zone,
    integrate_milliwatts,
    open_meter,
)


class NVMLError(Exception):
    pass


def plant_nvml(monkeypatch: pytest.MonkeyPatch, **queries: Any) -> None:
    """An NVML with two devices; a query returns a value, or raises."""

    def query(name: str) -> Any:
        def ask(handle: int) -> Any:
            value = queries[name][handle]
            if isinstance(value, Exception):
                raise value
            return value

        return ask

    library = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        **{f"nvmlDeviceGet{name}": query(name) for name in queries},
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)


def zone(root: Path, name: str, kind: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", kind), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
        (folder / file).write_text(f"{value}\n")
    return folder


def test_a_counter_of_nvml_is_in_millijoules() -> None:
    assert count_millijoules(lambda: 12_345).joules() == 12.345


def test_power_is_integrated_between_readings() -> None:
    times, powers = iter([10.0, 11.0, 13.0]), iter([100_000, 200_000, 400_000])
    counter = integrate_milliwatts(lambda: next(powers), lambda: next(times))
    assert counter.joules() == 150.0
    assert counter.joules() == 150.0 + 2 * 300.0


def test_a_counter_of_rapl_wraps_around(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    counter = count_zone(folder)
    assert counter.joules() == 0.0
    for energy_uj, joules in ((950_000, 0.05), (20_000, 0.12), (1_000_000, 1.1), (0, 1.1)):
        zone(tmp_path, "intel-rapl:0", "package-0", energy_uj)
        assert counter.joules() == pytest.approx(joules, abs=1e-12)


def test_packages_and_memory_are_counted_once(tmp_path: Path) -> None:
    for name, kind in (
        ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"), ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"), ("intel-rapl:2", "package-1"),
    ):  # fmt: skip
        zone(tmp_path, name, kind, 5)
    meter = open_meter(tmp_path, {})
    assert meter.sources == {"cpu0": "RAPL", "dram0": "RAPL", "cpu2": "RAPL"} and meter.absent is None
    before = meter.read()
    zone(tmp_path, "intel-rapl:0", "package-0", 300_005)
    zone(tmp_path, "intel-rapl:0:1", "dram", 100_005)
    assert meter.read().since(before).joules == pytest.approx({"cpu0": 0.3, "dram0": 0.1, "cpu2": 0.0})
    meter.close()


def test_without_a_counter_there_is_a_reason(tmp_path: Path) -> None:
    meter = open_meter(tmp_path, {})
    assert (meter.sources, meter.absent) == ({}, "no NVIDIA device with a counter, and no RAPL")
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 5)
    (folder / "energy_uj").unlink()  # root reads any file
    assert "no permission to read" in str(open_meter(tmp_path, {}).absent)


def test_a_device_without_a_counter_is_integrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    lacking = NVMLError("not supported")
    plant_nvml(monkeypatch, TotalEnergyConsumption=[lacking, 7_000], PowerUsage=[100_000, 100_000])
    meter = open_meter(tmp_path, {})
    assert meter.sources == {"gpu0": "integrated power", "gpu1": "NVML counter"}
    assert meter.read().joules["gpu1"] == 7.0
    meter.close()
    only = open_meter(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})
    assert only.sources == {"gpu1": "NVML counter"}
    assert open_meter(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}).sources == {"cpu0": "RAPL"}
    plant_nvml(monkeypatch, TotalEnergyConsumption=[lacking, 7_000], PowerUsage=[lacking, 100_000])
    assert open_meter(tmp_path, {}).sources == {"gpu1": "NVML counter"}


def test_a_counter_that_fails_is_left_out_and_named() -> None:
    answers: Any = itertools.chain([1_000], iter(lambda: 1 / 0, None))
    meter = EnergyMeter({"gpu0": count_millijoules(lambda: next(answers)), "gpu1": count_millijoules(lambda: 5_000)})
    before = meter.read()
    after = meter.read()
    assert after.joules == {"gpu1": 5.0} and after.since(before).joules == {}
    assert meter.absent == "the counter of gpu0 cannot be read any more: division by zero"


def test_a_counter_that_was_reset_has_no_difference() -> None:
    assert EnergyReading(3.0, {"gpu0": 1.0}).since(EnergyReading(1.0, {"gpu0": 2.0})).joules == {}
    assert EnergyReading(3.0, {"gpu0": 9.0}).since(EnergyReading(1.0, {"gpu0": 2.0})).power_w == {"gpu0": 3.5}
