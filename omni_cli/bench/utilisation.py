"""The machine's load during a measurement, sampled by a thread of the command's process about twice per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from omni_cli.bench.machine_counters import Counters, MachineCounters
from omni_cli.bench.nvml import GpuState
from omni_cli.record import GpuUtilisation, Utilisation

INTERVAL_S = 0.5
MAX_SHARE = 0.01
"""Limit of the sampler's own cost, as a share of one core; above it, samples become less frequent."""

MAX_SAMPLES = 1200
"""Above this number, neighbours are merged, so that the record of a run of hours stays small."""


@dataclass(frozen=True)
class Stretch:
    """The interval between two readings: means over `seconds`, ending `end_s` after the start."""

    end_s: float
    seconds: float
    busy_cores: float
    own_cores: float
    stolen_cores: float
    held_back: float | None
    cpu_mhz: float | None
    gpus: tuple[GpuState, ...] = ()


class UtilisationSampler:
    """Samples while its `with` block runs; `utilisation()` returns the series so far, on any thread."""

    def __init__(self, source: Callable[[], MachineCounters] = MachineCounters, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._interval_s = interval_s
        self._stretches: list[Stretch] = []
        self._block_end_s: list[float] = []
        self._cost_s = 0.0
        self._error: str | None = None
        self._started_s = 0.0
        self._cores = 0
        self._gpu_names: tuple[tuple[int, str], ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omni-utilisation", daemon=True)

    def __enter__(self) -> UtilisationSampler:
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def block_ended(self) -> None:
        """Note the end of a block of runs."""
        self._block_end_s.append(time.monotonic() - self._started_s)

    def utilisation(self) -> Utilisation:
        stretches = tuple(self._stretches)
        if any(item.held_back is None for item in stretches) or not stretches:
            held_back: tuple[float, ...] = ()
        else:
            held_back = _rounded([item.held_back or 0.0 for item in stretches])
        mhz = tuple(round(item.cpu_mhz) for item in stretches if item.cpu_mhz is not None)
        return Utilisation(
            interval_s=self._interval_s,
            cost_s=round(self._cost_s, 4),
            usable_cores=self._cores,
            end_s=_rounded([item.end_s for item in stretches]),
            busy_cores=_rounded([item.busy_cores for item in stretches]),
            own_cores=_rounded([item.own_cores for item in stretches]),
            stolen_cores=_rounded([item.stolen_cores for item in stretches]),
            held_back=held_back,
            cpu_mhz=mhz if len(mhz) == len(stretches) else (),
            gpus=tuple(
                _gpu_series(index, name, [item.gpus[position] for item in stretches])
                for position, (index, name) in enumerate(self._gpu_names)
            ),
            block_end_s=_rounded(self._block_end_s),
            error=self._error,
        )

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        except Exception as error:  # noqa: BLE001 - an observer's failure must not end a measurement; it is reported
            self._error = f"{type(error).__name__}: {error}"

    def _sample_until_stopped(self) -> None:
        source = self._source()
        self._cores, self._gpu_names = source.usable_cores, source.gpu_names
        before = source.read()
        is_last = False
        while not is_last:
            # The last interval counts, too, unless it is too short for counters of hundredths of seconds.
            is_last = self._stop.wait(max(self._interval_s, self._cost_s / max(len(self._stretches), 1) / MAX_SHARE))
            begun_s = time.thread_time()
            after = source.read()
            if not is_last or after.at_s - before.at_s > self._interval_s / 2:
                self._stretches.append(_stretch(before, after, self._started_s))
                before = after
            if len(self._stretches) > MAX_SAMPLES:
                self._stretches = merge_neighbours(self._stretches)
                self._interval_s *= 2
            self._cost_s += time.thread_time() - begun_s


def merge_neighbours(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Merge each two neighbours into one."""
    pairs = zip(stretches[::2], stretches[1::2], strict=False)
    return [*(_joined(a, b) for a, b in pairs), *(stretches[-1:] if len(stretches) % 2 else ())]


def _stretch(before: Counters, after: Counters, started_s: float) -> Stretch:
    seconds = after.at_s - before.at_s

    def rate(name: str) -> float:
        # A process that was reparented is no longer included, so that the sum may be smaller than before.
        taken: float = getattr(after, name) - getattr(before, name)
        return max(0.0, taken / seconds)

    return Stretch(
        end_s=after.at_s - started_s,
        seconds=seconds,
        busy_cores=rate("busy_s"),
        own_cores=rate("own_s"),
        stolen_cores=rate("stolen_s"),
        held_back=_held_back(before.quota, after.quota),
        cpu_mhz=after.cpu_mhz,
        gpus=after.gpus,
    )


def _held_back(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the share of the quota's periods in which it ran out."""
    if before is None or after is None:
        return None
    periods = after[0] - before[0]
    return min(max(0.0, (after[1] - before[1]) / periods), 1.0) if periods > 0 else 0.0


def _joined(a: Stretch, b: Stretch) -> Stretch:
    seconds = a.seconds + b.seconds

    def mean(x: float, y: float) -> float:
        return (x * a.seconds + y * b.seconds) / seconds

    def get_mean(name: str) -> float | None:
        x, y = getattr(a, name), getattr(b, name)
        return None if x is None or y is None else mean(x, y)

    return Stretch(
        end_s=b.end_s,
        seconds=seconds,
        busy_cores=mean(a.busy_cores, b.busy_cores),
        own_cores=mean(a.own_cores, b.own_cores),
        stolen_cores=mean(a.stolen_cores, b.stolen_cores),
        held_back=get_mean("held_back"),
        cpu_mhz=get_mean("cpu_mhz"),
        gpus=tuple(
            GpuState(
                utilisation_percent=mean(x.utilisation_percent, y.utilisation_percent),
                sm_clock_mhz=mean(x.sm_clock_mhz, y.sm_clock_mhz),
                temperature_c=max(x.temperature_c, y.temperature_c),
                power_w=mean(x.power_w, y.power_w),
                throttled=tuple(sorted({*x.throttled, *y.throttled})),
            )
            for x, y in zip(a.gpus, b.gpus, strict=True)
        ),
    )


def _gpu_series(index: int, name: str, states: Sequence[GpuState]) -> GpuUtilisation:
    return GpuUtilisation(
        index=index,
        name=name,
        utilisation_percent=_rounded([state.utilisation_percent for state in states], 1),
        sm_clock_mhz=_rounded([state.sm_clock_mhz for state in states], 0),
        temperature_c=_rounded([state.temperature_c for state in states], 0),
        power_w=_rounded([state.power_w for state in states], 1),
        throttled=tuple("+".join(state.throttled) for state in states),
    )


def _rounded(values: Sequence[float], digits: int = 3) -> tuple[float, ...]:
    return tuple(round(value, digits) for value in values)
