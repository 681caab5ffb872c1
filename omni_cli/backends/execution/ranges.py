"""Named ranges of a stage's work ("model forward", "denoising step 3"), and times on the clock of its device.

Ranges cost almost nothing without a listener (`omni profile` sets one).

    with mark("vae decode"):
        ...

    steps = Consecutive()        # the end of one is the start of the next
    steps.next("denoising step", 1)
    steps.next("denoising step", 2)
    steps.close()

Ranges are nested and belong to the listener's thread; those of other threads are ignored. Imports nothing heavy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol


class Listener(Protocol):
    """Receives ranges in the thread that called `listen`; `end` ends the latest one."""

    def begin(self, name: str) -> None: ...

    def end(self) -> None: ...

    def request_began(self, request_id: str) -> None:
        """Note that the stage has received a request; requests overlap, and steps belong to none of them alone."""

    def request_ended(self, request_id: str) -> None: ...


_listener: Listener | None = None
_thread = 0
_NO_RANGE = nullcontext()


def listen(listener: Listener | None) -> None:
    """Report this thread's ranges to `listener` from now on; None stops that. Must not be called within a range."""
    global _listener, _thread
    _listener, _thread = listener, threading.get_ident()


def is_recorded() -> bool:
    """Return True if this thread's ranges are reported to a listener."""
    return _own_listener() is not None


def _own_listener() -> Listener | None:
    return None if _listener is None or threading.get_ident() != _thread else _listener


def mark(name: str, number: int | None = None) -> AbstractContextManager[None]:
    """Return a context manager for a range; `number` is appended to its name."""
    if _listener is None:  # in every step of a stage
        return _NO_RANGE
    listener = _own_listener()
    return _NO_RANGE if listener is None else _record_range(listener, name if number is None else f"{name} {number}")


def request_began(request_id: str) -> None:
    if _listener is not None:
        _listener.request_began(request_id)


def request_ended(request_id: str) -> None:
    if _listener is not None:
        _listener.request_ended(request_id)


@contextmanager
def _record_range(listener: Listener, name: str) -> Iterator[None]:
    listener.begin(name)
    try:
        yield
    finally:
        listener.end()


class Consecutive:
    """Ranges that follow one another without a gap; `close` ends the last one, even after an error."""

    def __init__(self) -> None:
        self._open: AbstractContextManager[None] | None = None

    def next(self, name: str, number: int | None = None) -> None:
        self.close()
        self._open = mark(name, number)
        self._open.__enter__()

    def close(self) -> None:
        """Idempotent."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


class Clock:
    """A clock for devices that work in step with Python: the CPU."""

    def mark(self) -> Any:
        """Return the current point in the device's order of work. Never waits."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, the later of which the device must have reached."""
        return float(end - start)


class CudaClock(Clock):
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
    return CudaClock() if device.startswith("cuda") else Clock()
