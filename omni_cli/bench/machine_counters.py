"""Counters of the system: processor time of the machine and of our processes, and the state of NVIDIA's devices."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from omni_cli.bench.nvml import GpuState, Nvml
from omni_cli.machine import read_cpu_quota

_MAX_CLOCKS = 16  # reading a core's clock may interrupt it, and more of them add nothing

_ROOT = Path("/")


@dataclass(frozen=True)
class Counters:
    """Seconds of processor time of all cores since an arbitrary start, at the time `at_s`.

    `busy_s` is of the cores that this process may use, `stolen_s` what the host of a virtual machine gave to others,
    `own_s` of this process and its descendants. `quota` counts the periods of a container's processor quota and those
    in which it ran out, None without one. `cpu_mhz` is the clock of the fastest core now, None where it is not known.
    """

    at_s: float
    busy_s: float
    own_s: float
    stolen_s: float
    quota: tuple[int, int] | None = None
    cpu_mhz: float | None = None
    gpus: tuple[GpuState, ...] = ()


class MachineCounters:
    """Reads all counters. `root` is the folder of `proc` and `sys`."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._process = psutil.Process()
        self._cores = sorted(os.sched_getaffinity(0))
        quota = read_cpu_quota(root)
        self._quota = None if quota is None else quota.folder / "cpu.stat"
        self._clocks = _clock_files(root, self._cores)
        self._nvml = Nvml.open()
        self.usable_cores = len(self._cores)
        self.gpu_names = () if self._nvml is None else self._nvml.names

    def read(self) -> Counters:
        times = psutil.cpu_times(percpu=True)
        used = [times[core] for core in self._cores if core < len(times)]
        return Counters(
            at_s=time.monotonic(),
            busy_s=sum(core.user + core.nice + core.system + core.irq + core.softirq for core in used),
            own_s=_tree_seconds(self._process),
            stolen_s=sum(core.steal for core in used),
            quota=_quota_periods(self._quota),
            cpu_mhz=max((clock for path in self._clocks if (clock := _mhz(path)) is not None), default=None),
            gpus=() if self._nvml is None else self._nvml.read(),
        )


def _tree_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process, its descendants, and those that ended and were waited for."""
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return round(total, 6)  # clock ticks; without rounding, equal times summed in another order may differ


def _clock_files(root: Path, cores: Sequence[int]) -> tuple[Path, ...]:
    step = -(-len(cores) // _MAX_CLOCKS)
    files = (root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in cores[::step])
    return tuple(path for path in files if path.exists())


def _quota_periods(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    fields = dict(line.split()[:2] for line in _text(path).splitlines() if len(line.split()) == 2)
    names = ("nr_periods", "nr_throttled")
    return (int(fields[names[0]]), int(fields[names[1]])) if all(name in fields for name in names) else None


def _mhz(path: Path) -> float | None:
    text = _text(path).strip()
    return int(text) / 1000 if text.isdigit() else None


def _text(path: Path) -> str:
    """Read a file; empty if the kernel has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
