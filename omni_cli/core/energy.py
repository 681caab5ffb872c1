"""Counters of energy: NVML's of each device, its power integrated where it has none, else RAPL's of the processors."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omni_cli.core.machine import open_nvml

SHORTEST_S = 2.0
"""No figure is of less than this: NVML's counter moves every 100 ms."""

_ROOT = Path("/")


class EnergyReading(NamedTuple):
    """Seconds, and joules by device, since an arbitrary time or another reading."""

    seconds: float
    joules: Mapping[str, float]

    def since(self, before: EnergyReading) -> EnergyReading:
        """Return the difference; without joules if a counter was lost or reset in between."""
        used = {name: value - before.joules.get(name, math.inf) for name, value in self.joules.items()}
        is_whole = used.keys() == before.joules.keys() and all(value >= 0 for value in used.values())
        return EnergyReading(self.seconds - before.seconds, used if is_whole else {})

    @property
    def power_w(self) -> dict[str, float]:
        return {name: value / self.seconds for name, value in self.joules.items()}


class EnergyCounter(NamedTuple):
    """`joules()` never returns less than before; it has to be called every `period_s`, if that is not None."""

    source: str
    joules: Callable[[], float]
    period_s: float | None = None


def count_millijoules(query: Callable[[], int]) -> EnergyCounter:
    """Return a device's own counter."""
    return EnergyCounter("NVML counter", lambda: query() / 1000)


def integrate_milliwatts(query: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> EnergyCounter:
    """Return the sum of a device's power between calls."""
    last, total = (clock(), query() / 1000), 0.0

    def joules() -> float:
        nonlocal last, total
        (before_s, before_w), last = last, (clock(), query() / 1000)
        total += (last[0] - before_s) * (last[1] + before_w) / 2
        return total

    return EnergyCounter("integrated power", joules, 0.1)


def count_zone(zone: Path) -> EnergyCounter:
    """Return a zone of the kernel's powercap, whose microjoules wrap around: 65 kJ last 3 minutes at 350 W."""
    limit, last, total = int((zone / "max_energy_range_uj").read_text()), int((zone / "energy_uj").read_text()), 0

    def joules() -> float:
        nonlocal last, total
        before, last = last, int((zone / "energy_uj").read_text())
        total += last - before + (limit if last < before else 0)
        return total / 1e6

    return EnergyCounter("RAPL", joules, 60.0)


class EnergyMeter:
    """Reads counters by the name of their device, on any thread. `absent` is the reason why some cannot be read.

    Until `close`, a thread reads counters that must not wait for the next reading.
    """

    def __init__(self, counters: Mapping[str, EnergyCounter], absent: str | None = None) -> None:
        self._counters = dict(counters)
        self.sources = {name: counter.source for name, counter in counters.items()}
        self.absent = absent
        self._lock = threading.Lock()
        self._closed = threading.Event()
        periods = [counter.period_s for counter in counters.values() if counter.period_s is not None]
        if periods:
            threading.Thread(target=self._keep_reading, args=[min(periods)], name="omni-energy", daemon=True).start()

    def read(self) -> EnergyReading:
        """Read all devices; one that cannot be read any more is left out."""
        found = {}
        with self._lock:
            for name, counter in [*self._counters.items()]:
                try:
                    found[name] = counter.joules()
                except Exception as error:  # noqa: BLE001 - an observer's failure must not end what it observes
                    self.absent = f"the counter of {name} cannot be read any more: {error}"
                    del self._counters[name]
        return EnergyReading(time.monotonic(), found)

    def close(self) -> None:
        self._closed.set()

    def _keep_reading(self, period_s: float) -> None:
        while not self._closed.wait(period_s):
            self.read()


def open_meter(root: Path | None = None, variables: Mapping[str, str] = os.environ) -> EnergyMeter:
    """Open the counters of the devices that this process may use; without a device, those of the processors.

    `root` contains `sys`.
    """
    counters = _open_devices(variables)
    zones = [] if counters else sorted((root or _ROOT).glob("sys/class/powercap/intel-rapl:*"))
    for zone in zones:
        try:
            kind, number = (zone / "name").read_text().strip(), zone.name.split(":")[1]
            # A package contains its cores, and a platform (`psys`) its packages; memory is counted apart.
            if kind.startswith("package") or kind == "dram":
                counters[f"dram{number}" if kind == "dram" else f"cpu{number}"] = count_zone(zone)
        except (OSError, ValueError):
            continue
    if counters:
        return EnergyMeter(counters)
    closed = "no permission to read /sys/class/powercap/*/energy_uj"
    return EnergyMeter({}, closed if zones else "no NVIDIA device with a counter, and no RAPL")


def _open_devices(variables: Mapping[str, str]) -> dict[str, EnergyCounter]:
    nvml, devices = open_nvml(variables)
    counters = {}
    for index, handle in devices:
        for make, name in ((integrate_milliwatts, "PowerUsage"), (count_millijoules, "TotalEnergyConsumption")):
            query = partial(getattr(nvml, f"nvmlDeviceGet{name}"), handle)
            try:
                query()
            except nvml.NVMLError:
                continue
            counters[f"gpu{index}"] = make(query)
    return counters
