"""A slow device for `AsyncCopy`: copies take time on its own clock, and arrive when they are due, not before."""

from __future__ import annotations

import weakref
from collections import deque

import torch

GARBAGE = 0xA5


class LateDevice:
    """A `CopyBackend` whose clock stops unless `pass_time` is called or somebody waits.

    A destination is garbage until its copy is due. Like a real device it knows addresses only: it reads whatever the
    source holds by then, and writes to its destination even if another tensor lives there now.
    """

    def __init__(self, bytes_per_s: float = 1.0) -> None:
        self.now = 0.0
        self.buffers: list[torch.Tensor] = []
        self.problems: list[str] = []
        self._bytes_per_s = bytes_per_s
        self._busy_until = 0.0
        self._queued: deque[LateTransfer] = deque()

    def compute(self, seconds: float) -> None:
        """Work on the current stream, behind what is there already."""
        self._busy_until = max(self._busy_until, self.now) + seconds

    def is_computing(self) -> bool:
        return self._busy_until > self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while self._queued and self._queued[0].ends <= self.now:
            self._queued.popleft().land(self.problems)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        self.buffers.append(torch.empty(num_bytes, dtype=torch.uint8))
        return self.buffers[-1]

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._buffer_of(tensor) is not None

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> LateTransfer:
        buffer = self._buffer_of(destination)
        assert buffer is not None
        begins = max(self.now, self._busy_until, self._queued[-1].ends if self._queued else 0.0)
        target = buffer[: destination.nbytes]
        target.fill_(GARBAGE)
        self._queued.append(LateTransfer(self, source, target, begins, destination.nbytes / self._bytes_per_s))
        return self._queued[-1]

    def _buffer_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return next((buffer for buffer in self.buffers if buffer.data_ptr() == tensor.data_ptr()), None)


class LateTransfer:
    def __init__(
        self, device: LateDevice, source: torch.Tensor, target: torch.Tensor, begins: float, seconds: float
    ) -> None:
        self._device, self._target, self._seconds = device, target, seconds
        self._source = weakref.ref(source)
        self.ends = begins + seconds

    def land(self, problems: list[str]) -> None:
        source = self._source()
        if source is None:
            problems.append("a source was freed before its copy was done")
        else:
            self._target.view(source.dtype).view(source.shape).copy_(source)

    def done(self) -> bool:
        return self._device.now >= self.ends

    def wait(self) -> None:
        self._device.pass_time(self.ends - self._device.now)

    def seconds(self) -> float:
        return self._seconds

    def stream_busy(self) -> bool:
        return self._device.is_computing()
