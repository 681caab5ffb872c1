"""Host buffers that are reused, but never while anything can still read them.

Allocating page-locked memory takes longer than a small copy into it and may stop the device, so buffers are kept. A
buffer is lent as a tensor. It is in use while that tensor, a view of it or a numpy array over it is alive, and then
returns by itself, so that no release can be forgotten.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SMALLEST_BYTES = 4096


class HostBufferPool:
    """Buffers by size, each a power of two."""

    def __init__(self, allocate: Callable[[int], torch.Tensor], max_idle_bytes: int = 1 << 28) -> None:
        """`allocate` makes a uint8 tensor (num_bytes,) on the host.

        At most `max_idle_bytes` of unused buffers are kept; the rest is freed.
        """
        self._allocate = allocate
        self._max_idle_bytes = max_idle_bytes
        self._idle: dict[int, list[torch.Tensor]] = {}
        self.idle_bytes = 0
        self.allocated_buffers = 0
        # Appended to when a tensor is released, from any thread and at any time: one atomic operation without a lock.
        self._returned: deque[torch.Tensor] = deque()

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised, non-empty host tensor with its own memory; called from one thread."""
        import numpy as np
        import torch

        num_bytes = dtype.itemsize * math.prod(shape)
        buffer = self._take(max(_SMALLEST_BYTES, 1 << (num_bytes - 1).bit_length()))
        lease = _Lease(buffer, num_bytes)
        weakref.finalize(lease, self._returned.append, buffer).atexit = False
        return torch.from_numpy(np.asarray(lease)).view(dtype).view(shape)

    def _take(self, size: int) -> torch.Tensor:
        self._collect()
        if idle := self._idle.get(size):
            self.idle_bytes -= size
            return idle.pop()
        self.allocated_buffers += 1
        return self._allocate(size)

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            if self.idle_bytes + buffer.numel() <= self._max_idle_bytes:
                self._idle.setdefault(buffer.numel(), []).append(buffer)
                self.idle_bytes += buffer.numel()


class _Lease:
    """Kept alive by every tensor over a lent buffer: numpy holds it, and torch holds numpy's array."""

    def __init__(self, buffer: torch.Tensor, num_bytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (num_bytes,),
            "data": (buffer.data_ptr(), False),
        }
