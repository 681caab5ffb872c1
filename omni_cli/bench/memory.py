"""Peak memory of a variant, and the check that another copy of it would fit beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from omni_cli.bench.protocol import StagePeaks
from omni_cli.doctor.machine import read_gpus, read_memory
from omni_cli.record import Memory

HEADROOM = 0.9
"""Share of the free memory that is used; the rest is for inputs, outputs and other programs."""


def get_memory(stages: Mapping[str, StagePeaks]) -> Memory:
    """Return the record's `memory`: sums over the stages of their peaks while running; peaks of loading only per stage.

    Stages have separate processes and need not peak at the same time, so the sum is an upper bound.
    """
    run = [stage.run or stage.load for stage in stages.values()]

    def total(key: str) -> int | None:
        return sum(peaks.get(key, 0) for peaks in run) or None

    return Memory(
        peak_allocated_bytes=total("device"),
        peak_reserved_bytes=total("reserved"),
        peak_host_rss_bytes=total("host"),
        stages={
            name: {
                phase: {
                    "peak_allocated_bytes": peaks.get("device"),
                    "peak_reserved_bytes": peaks.get("reserved"),
                    "peak_host_rss_bytes": peaks.get("host"),
                }
                for phase, peaks in (("load", stage.load), ("run", stage.run))
                if peaks
            }
            for name, stage in stages.items()
        },
    )


@dataclass(frozen=True)
class Free:
    """Free bytes on the host, within its container's limit, and on each device."""

    host: int
    devices: tuple[int, ...] = ()


def read_free() -> Free:
    return Free(read_memory().available_bytes, tuple(gpu.free_bytes for gpu in read_gpus().devices))


def private_bytes(pid: int) -> int:
    """Return the bytes of a process and its descendants that would not be shared with a copy of them."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    total = 0
    for process in processes:
        try:
            memory = process.memory_full_info()
            total += memory.uss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def lacking(used: Free, free: Free, copies: int) -> str | None:
    """Return the reason why `copies` more of a process that uses `used` do not fit into `free`; None if they do."""
    needed = used.host * copies
    if needed > free.host * HEADROOM:
        return f"{_gib(needed)} of memory for {copies} more, {_gib(free.host)} free"
    for index, (taken, left) in enumerate(zip(used.devices, free.devices, strict=False)):
        if taken * copies > left * HEADROOM:
            return f"{_gib(taken * copies)} of device {index}'s memory for {copies} more, {_gib(left)} free"
    return None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
