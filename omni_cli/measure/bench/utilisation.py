"""The machine's load during a measurement: counters of its processors and devices, read about twice per second; and the
load of a device while one variant ran."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from omni_cli.core.machine import open_nvml, read_cpu_quota
from omni_cli.measure.bench.schedule import TURN_S
from omni_cli.records.record import DeviceLoad, GpuUtilisation, Utilisation

INTERVAL_S = 0.5
MAX_SHARE = 0.01
"""Limit of the sampler's own cost, as a share of one core; above it, samples become less frequent."""

MAX_SAMPLES = 1200
"""Above this number, every second reading is dropped, so that the record of a run of hours stays small."""

SETTLED_S = 1.0
"""A reading counts for a variant that has run for so long: a device's power is its mean over the last second."""

MAX_GAP_S = 0.1
"""Without work for longer than this, a device has to settle again."""

PROBE_NUMBER = 2**20
"""The number of the first iteration that shows a device's power, far from those that are measured."""

LIMIT_SHARE = 0.9
"""A device that takes this share of its power limit works at it: the mean of a second has gaps."""

_MAX_CLOCKS = 16  # reading a core's clock may interrupt it, and more of them add nothing
_ROOT = Path("/")
# NVML's bits, without idle, clocks that somebody set, and boost groups, which are no throttling.
_THROTTLE_BITS = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "power_brake",
}


@dataclass(frozen=True)
class GpuState:
    """`throttled` names what holds the clock down now: `power_cap`, `thermal`, `hw_slowdown`, `power_brake`."""

    utilisation_percent: float
    sm_clock_mhz: float
    temperature_c: float
    power_w: float
    throttled: tuple[str, ...] = ()
    max_sm_clock_mhz: float | None = None
    power_limit_w: float | None = None

    @property
    def is_at_limit(self) -> bool:
        """True if the power holds the clock down, or is about to."""
        limit_w = self.power_limit_w
        return "power_cap" in self.throttled or (limit_w is not None and self.power_w >= LIMIT_SHARE * limit_w)


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


class UtilisationSampler:
    """Samples in a thread while its `with` block runs; `utilisation()` returns the series so far, on any thread."""

    def __init__(self, source: Callable[[], MachineCounters] | None = None, interval_s: float = INTERVAL_S) -> None:
        self._source = source or MachineCounters
        self._interval_s = interval_s
        self._readings: list[Counters] = []
        self._block_end_s: list[float] = []
        self._cost_s = 0.0
        self._error: str | None = None
        self._started_s = 0.0
        self._cores = 0
        self._gpu_names: tuple[tuple[int, str], ...] = ()
        self._opened = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omni-utilisation", daemon=True)

    def __enter__(self) -> UtilisationSampler:
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def has_devices(self) -> bool:
        """Wait for the first reading; return True if a device tells its load."""
        self._opened.wait()
        return bool(self._gpu_names)

    def restart(self) -> None:
        """Begin the series again, with the first block."""
        self._readings, self._cost_s, self._started_s = self._readings[-1:], 0.0, time.monotonic()

    def device_readings(self, spans: Sequence[tuple[float, float]]) -> list[tuple[int, list[GpuState]]]:
        """Return by device its index and the states at the times within these spans of `time.monotonic`."""
        within = [item for item in tuple(self._readings) if any(start <= item.at_s <= end for start, end in spans)]
        return [(index, [item.gpus[place] for item in within]) for place, (index, _) in enumerate(self._gpu_names)]

    def block_ended(self) -> None:
        """Note the end of a block of runs."""
        self._block_end_s.append(time.monotonic() - self._started_s)

    def utilisation(self) -> Utilisation:
        """Return the means between neighbouring readings, and the states at the later ones."""
        readings = tuple(self._readings)
        later = readings[1:]
        held_back = [_held_back(before.quota, after.quota) for before, after in itertools.pairwise(readings)]
        clocks = [round(item.cpu_mhz) for item in later if item.cpu_mhz is not None]
        return Utilisation(
            interval_s=self._interval_s,
            cost_s=round(self._cost_s, 4),
            usable_cores=self._cores,
            end_s=_round_all([item.at_s - self._started_s for item in later]),
            busy_cores=_rates(readings, "busy_s"),
            own_cores=_rates(readings, "own_s"),
            stolen_cores=_rates(readings, "stolen_s"),
            held_back=() if None in held_back else _round_all([share or 0.0 for share in held_back]),
            cpu_mhz=tuple(clocks) if len(clocks) == len(later) else (),
            gpus=tuple(
                _gpu_series(index, name, [item.gpus[position] for item in later])
                for position, (index, name) in enumerate(self._gpu_names)
            ),
            block_end_s=_round_all(self._block_end_s),
            error=self._error,
        )

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        except Exception as error:  # noqa: BLE001 - an observer's failure must not end a measurement; it is reported
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._opened.set()

    def _sample_until_stopped(self) -> None:
        source = self._source()
        self._cores, self._gpu_names = source.usable_cores, source.gpu_names
        self._readings.append(source.read())
        self._opened.set()
        is_last = False
        while not is_last:
            # The last interval counts, too, unless it is too short for counters of hundredths of seconds.
            is_last = self._stop.wait(max(self._interval_s, self._cost_s / len(self._readings) / MAX_SHARE))
            begun_s = time.thread_time()
            reading = source.read()
            if not is_last or reading.at_s - self._readings[-1].at_s > self._interval_s / 2:
                self._readings.append(reading)
            if len(self._readings) > MAX_SAMPLES:
                self._readings = self._readings[::2]
                self._interval_s *= 2
            self._cost_s += time.thread_time() - begun_s


def _rates(readings: Sequence[Counters], name: str) -> tuple[float, ...]:
    """Return the cores that were taken between neighbouring readings.

    A process that was reparented is no longer included, so that a sum may be smaller than before.
    """
    pairs = itertools.pairwise(readings)
    return _round_all([max(0.0, (getattr(b, name) - getattr(a, name)) / (b.at_s - a.at_s)) for a, b in pairs])


def _held_back(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the share of the quota's periods in which it ran out."""
    if before is None or after is None:
        return None
    periods = after[0] - before[0]
    return min(max(0.0, (after[1] - before[1]) / periods), 1.0) if periods > 0 else 0.0


def _gpu_series(index: int, name: str, states: Sequence[GpuState]) -> GpuUtilisation:
    return GpuUtilisation(
        index=index,
        name=name,
        max_sm_clock_mhz=next((state.max_sm_clock_mhz for state in states), None),
        utilisation_percent=_round_all([state.utilisation_percent for state in states], 1),
        sm_clock_mhz=_round_all([state.sm_clock_mhz for state in states], 0),
        temperature_c=_round_all([state.temperature_c for state in states], 0),
        power_w=_round_all([state.power_w for state in states], 1),
        throttled=tuple("+".join(state.throttled) for state in states),
    )


def _round_all(values: Sequence[float], digits: int = 3) -> tuple[float, ...]:
    return tuple(round(value, digits) for value in values)


class MachineCounters:
    """Reads all counters. `root` is the folder of `proc` and `sys`."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._process = psutil.Process()
        self._cores = sorted(os.sched_getaffinity(0))
        quota = read_cpu_quota(root)
        self._quota = None if quota is None else quota.folder / "cpu.stat"
        self._clocks = _clock_files(root, self._cores)
        self._nvml, devices = open_nvml()
        self._devices = [item for item in devices if _ask(self._nvml, _state, self._nvml, item[1])]
        self.usable_cores = len(self._cores)
        self.gpu_names = tuple((index, str(self._nvml.nvmlDeviceGetName(handle))) for index, handle in self._devices)

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
            gpus=tuple(_state(self._nvml, handle) for _, handle in self._devices),
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


def _ask(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return an answer; None of a device that does not tell, such as a part of one (MIG)."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _state(nvml: Any, handle: Any) -> GpuState:
    clock_mhz = _ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    limit_mw = _ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuState(
        utilisation_percent=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        sm_clock_mhz=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        temperature_c=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        # By its older name, which drivers of all ages know.
        throttled=throttle_names(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        max_sm_clock_mhz=clock_mhz and float(clock_mhz),
        power_limit_w=limit_mw and limit_mw / 1000,
    )


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the causes of throttling in NVML's mask of reasons."""
    return tuple(dict.fromkeys(name for bit, name in _THROTTLE_BITS.items() if bits & bit))


class RunSpans:
    """The spans of time in which each variant ran without a pause."""

    def __init__(self, num_variants: int) -> None:
        self._spans: list[list[tuple[float, float]]] = [[] for _ in range(num_variants)]
        self._last: int | None = None

    def ran(self, variant: int, began_s: float, ended_s: float) -> None:
        """Note an iteration, by `time.monotonic`."""
        spans = self._spans[variant]
        if variant == self._last and began_s - spans[-1][1] < MAX_GAP_S:
            began_s = spans.pop()[0]
        spans.append((began_s, ended_s))
        self._last = variant

    def device_load(self, variant: int, sampler: UtilisationSampler) -> tuple[DeviceLoad, ...]:
        """Return the load of each device that was busy while the variant ran."""
        settled = [(began_s + SETTLED_S, ended_s) for began_s, ended_s in self._spans[variant]]
        return tuple(
            DeviceLoad(
                index=index,
                sm_clock_mhz=statistics.median(state.sm_clock_mhz for state in states),
                max_sm_clock_mhz=states[-1].max_sm_clock_mhz,
                power_w=round(statistics.median(state.power_w for state in states), 1),
                power_limit_w=states[-1].power_limit_w,
            )
            for index, states in sampler.device_readings(settled)
            if any(state.utilisation_percent for state in states)
        )


async def run_a_turn(sampler: UtilisationSampler, run: Callable[[int], Awaitable[float]]) -> tuple[float, bool]:
    """Run iterations of a variant, by their numbers, for the length of a turn. Return the median of their seconds, and
    True if the power of a device held its clock down, or was about to."""
    times: list[float] = []
    began_s = time.monotonic()
    while sum(times) < TURN_S:
        times.append(await run(PROBE_NUMBER + len(times)))
    readings = sampler.device_readings([(began_s, time.monotonic())])
    return statistics.median(times), any(state.is_at_limit for _, states in readings for state in states)
