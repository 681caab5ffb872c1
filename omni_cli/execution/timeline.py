"""Times of events during one pipeline call, on the clock of the device."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    def mark(self) -> Any:
        """Return the current point in the device's order of work. Never waits."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, the later of which the device must have reached."""


class HostClock:
    """A clock for devices that work in step with Python: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Events on the current stream, because kernels run asynchronously and waiting for them would distort the times."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: str) -> Clock:
    return CudaClock() if device.startswith("cuda") else HostClock()
