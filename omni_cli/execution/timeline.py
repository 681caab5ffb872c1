"""Times of events during one pipeline call, on the clock of the device."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    def mark(self) -> Any:
        """The current point in the device's order of work. Never waits."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks. The device must have reached `end`."""


class HostClock:
    """For devices that work in step with Python: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Events on the current stream: kernels run behind Python, and waiting for them would distort the measurement."""

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
