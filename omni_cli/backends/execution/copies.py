"""Device-to-host output copies: before the device continues, or during its next work.

    copy = make_output_copy("async", "cuda")
    pending = copy.start(rows)    # the device continues
    host = pending.get()          # waits for this copy only

The data is only accessible through `get`, so that nobody reads it before it has arrived. Each mode is an object, chosen
once per stage.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from omni_cli.backends.execution.host_buffers import HostBufferPool
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.core.errors import OmniError

if TYPE_CHECKING:
    import torch

    from omni_cli.config.schema import OutputCopy as Mode


@dataclass
class CopyCounters:
    """Total cost of copies so far.

    `copy_s` is the device's time for them. Of it, `copy_exposed_s` was spent waiting while the device had nothing else
    to do, and `copy_hidden_s` overlapped with other work. `copy_blocked_s` is the time that host threads spent in
    `start` and `get`, which includes waiting for the device to compute the source. `pinned_copies` went to page-locked
    memory.
    """

    copies: int = 0
    copied_bytes: int = 0
    copy_s: float = 0.0
    copy_exposed_s: float = 0.0
    copy_hidden_s: float = 0.0
    copy_blocked_s: float = 0.0
    pinned_copies: int = 0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class PendingCopy(Protocol):
    """One tensor being copied."""

    def ready(self) -> bool:
        """True if `get` would return immediately."""

    def get(self) -> torch.Tensor:
        """Wait for the copy and return the tensor on the host.

        The tensor may lie in a buffer that is reused as soon as nobody holds it or a view of it. Clone it to keep it
        for long.
        """


class OutputCopy(Protocol):
    """Copies tensors of one device to the host; `start` is called from one thread, `get` from any."""

    mode: ClassVar[Mode]
    counters: CopyCounters

    def start(self, tensor: torch.Tensor, *, reused: bool = False) -> PendingCopy:
        """Copy `tensor` once the work queued on the current stream is done.

        With `reused`, its memory will be overwritten without notice, as a CUDA graph does with its outputs. Nothing
        else may write to it before the copy is done.
        """


class Transfer(Protocol):
    """A queued copy of a backend."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...

    def seconds(self) -> float:
        """The device's time for the finished copy."""

    def stream_busy(self) -> bool:
        """True if the device has work left on the source's stream; called when the copy has just ended."""


class CopyBackend(Protocol):
    """Device operations that an asynchronous copy needs."""

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Allocate a page-locked uint8 tensor (num_bytes,) on the host."""

    def is_pinned(self, tensor: torch.Tensor) -> bool: ...

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> Transfer:
        """Queue the copy on a separate stream, after all work on the current one."""


def make_output_copy(mode: Mode, device: torch.device | str) -> OutputCopy:
    """Create the object for `mode` on `device`; its `mode` is the effective one, see `why_not_async`."""
    if mode == "async" and why_not_async(device) is None:
        return AsyncCopy(CudaBackend(device))
    return SyncCopy()


def why_not_async(device: torch.device | str) -> str | None:
    """Return the reason why copies from `device` cannot be asynchronous, in one sentence; None if they can."""
    if str(device).partition(":")[0] == "cuda":
        return None
    return "`output_copy: async` needs a CUDA device: on a CPU the outputs are in host memory already"


class SyncCopy:
    """Makes the thread wait for the device and then for the copy, which goes to ordinary memory."""

    mode: ClassVar[Mode] = "sync"

    def __init__(self) -> None:
        self.counters = CopyCounters()

    def start(self, tensor: torch.Tensor, *, reused: bool = False) -> PendingCopy:
        """On the CPU, a tensor that is not `reused` is already in place and is neither copied nor counted."""
        tensor = tensor.detach()
        if tensor.device.type == "cpu" and not reused:
            return _Arrived(tensor)
        began_s = time.perf_counter()
        clock = clock_for(tensor.device.type)
        began = clock.mark()
        host = tensor.to("cpu", copy=True)
        seconds = clock.seconds(began, clock.mark())
        counters = self.counters
        counters.copies += 1
        counters.copied_bytes += host.nbytes
        counters.copy_s += seconds
        counters.copy_exposed_s += seconds
        counters.copy_blocked_s += time.perf_counter() - began_s
        return _Arrived(host)


class AsyncCopy:
    """Copies run during the device's work, into page-locked buffers that are reused."""

    mode: ClassVar[Mode] = "async"

    def __init__(self, backend: CopyBackend) -> None:
        self.counters = CopyCounters()
        self._backend = backend
        self._pool = HostBufferPool(backend.allocate)
        # Copies in the order of their start, in which they also end. Referenced here because a copy that nobody waits
        # for (its request was aborted) still needs its source and its buffer.
        self._under_way: deque[_Copying] = deque()
        self._lock = threading.Lock()

    def start(self, tensor: torch.Tensor, *, reused: bool = False) -> PendingCopy:
        import torch

        began_s = time.perf_counter()
        while self._under_way and self._under_way[0].ready():
            self._under_way.popleft().end()
        tensor = tensor.detach()
        if not tensor.numel():
            return _Arrived(tensor.to("cpu"))
        # Cloned on the current stream, and so before later work overwrites the tensor.
        source = tensor.clone(memory_format=torch.contiguous_format) if reused else tensor.contiguous()
        host = self._pool.lend(tuple(source.shape), source.dtype)
        if not self._backend.is_pinned(host):
            raise OmniError(
                "the destination of an asynchronous copy is pageable memory, which would make the copy blocking",
                hint="`--set STAGE.output_copy=sync` copies without page-locked memory",
            )
        copying = _Copying(source, host, self._backend.copy(source, host), self._count)
        self._under_way.append(copying)
        with self._lock:
            self.counters.copies += 1
            self.counters.pinned_copies += 1
            self.counters.copied_bytes += host.nbytes
            self.counters.copy_blocked_s += time.perf_counter() - began_s
        return copying

    def _count(self, seconds: float, waited_s: float, was_alone: bool) -> None:
        # Waiting ends when the copy ends, so time before the copy's own seconds was waiting for its source. If the
        # device continues with work queued after the source, only a thread that is ahead of it has waited.
        exposed_s = min(seconds, waited_s) if was_alone else 0.0
        with self._lock:
            self.counters.copy_s += seconds
            self.counters.copy_exposed_s += exposed_s
            self.counters.copy_hidden_s += seconds - exposed_s
            self.counters.copy_blocked_s += waited_s


class _Copying:
    """A copy in progress.

    `source` is referenced until the copy is done. `Tensor.record_stream` would do the same for tensors of torch's
    caching allocator, but nothing for those of a CUDA graph's own pool.
    """

    def __init__(
        self,
        source: torch.Tensor,
        host: torch.Tensor,
        transfer: Transfer,
        count: Callable[[float, float, bool], None],
    ) -> None:
        self._source: torch.Tensor | None = source
        self._host = host
        self._transfer = transfer
        self._count = count
        self._lock = threading.Lock()

    def ready(self) -> bool:
        return self._source is None or self._transfer.done()

    def get(self) -> torch.Tensor:
        if self._source is not None:
            waited_s, was_alone = 0.0, False
            if not self._transfer.done():
                began_s = time.perf_counter()
                self._transfer.wait()
                waited_s, was_alone = time.perf_counter() - began_s, not self._transfer.stream_busy()
            self.end(waited_s, was_alone)
        return self._host

    def end(self, waited_s: float = 0.0, was_alone: bool = False) -> None:
        """Release the source of the finished copy and count it, once."""
        with self._lock:
            if self._source is None:
                return
            self._source = None
        self._count(self._transfer.seconds(), waited_s, was_alone)


# A thread polls for a copy's end as long as this, and sleeps then.
_SPIN_S = 100e-6


class CudaBackend:
    """A separate stream for copies, on one device."""

    def __init__(self, device: torch.device | str) -> None:
        import torch

        self._stream = torch.cuda.Stream(device)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_pinned())

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> Transfer:
        import torch

        makes_source = torch.cuda.current_stream(source.device)
        self._stream.wait_stream(makes_source)
        with torch.cuda.stream(self._stream):
            began = _timing_event()
            destination.copy_(source, non_blocking=True)
            return _CudaTransfer(began, _timing_event(), makes_source)


class _CudaTransfer:
    def __init__(self, began: torch.cuda.Event, ended: torch.cuda.Event, makes_source: torch.cuda.Stream) -> None:
        self._began, self._ended, self._makes_source = began, ended, makes_source

    def done(self) -> bool:
        return bool(self._ended.query())

    def wait(self) -> None:
        # A sleeping thread wakes up 57 us after the event on an H200: as long as a small copy takes.
        until_s = time.perf_counter() + _SPIN_S
        while not self._ended.query():
            if time.perf_counter() > until_s:
                self._ended.synchronize()

    def seconds(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def stream_busy(self) -> bool:
        return not self._makes_source.query()


def _timing_event() -> torch.cuda.Event:
    """Record an event on the current stream; a thread that synchronizes with it sleeps instead of spinning."""
    import torch

    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record()
    return event


class _Arrived:
    """A copy that was complete from the start."""

    def __init__(self, host: torch.Tensor) -> None:
        self._host = host

    def ready(self) -> bool:
        return True

    def get(self) -> torch.Tensor:
        return self._host
