"""A listener that records ranges, requests and memory with little overhead."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from omni_cli.stage.recording import MemoryReading, Range, Recording, RequestSpan

_INTERVAL_S = 0.005
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RangeLog:
    """Records from `start` to `stop`. With `annotates`, ranges also appear in torch's profiler, on the device's track.

    Memory is sampled by a separate thread, and at each start and end of a range, with that time.
    """

    def __init__(self, *, annotates: bool = False) -> None:
        self._annotates = annotates
        self._open: list[tuple[str, int, Any]] = []
        self._ranges: list[Range] = []
        self._began_requests: dict[str, int] = {}
        self._requests: list[RequestSpan] = []
        self._samples: list[MemoryReading] = []
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample_until_stopped, name="omni-memory", daemon=True)

    def start(self) -> None:
        self._sampler.start()
        self._waited_ns = _waited_ns()
        self._cpu_ns = time.process_time_ns()
        self._began_ns = time.time_ns()

    def stop(self) -> Recording:
        ended_ns, cpu_ns, waited_ns = time.time_ns(), time.process_time_ns(), _waited_ns()
        self._stopped.set()
        self._sampler.join()
        os.close(self._statm)
        waited = None
        if waited_ns is not None and self._waited_ns is not None:
            waited = max(0, waited_ns - self._waited_ns)  # threads that have ended are not counted
        return Recording(
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            requests=tuple(self._requests),
            ranges=tuple(sorted(self._ranges, key=lambda item: (item.began_ns, item.depth))),
            samples=tuple(sorted(self._samples, key=lambda sample: sample.at_ns)),
            cpu_ns=cpu_ns - self._cpu_ns,
            waited_ns=waited,
        )

    def begin(self, name: str) -> None:
        annotation = None
        if self._annotates:
            import torch

            annotation = torch.profiler.record_function(name)
            annotation.__enter__()
        sample = self._sample()
        self._samples.append(sample)
        self._open.append((name, sample.at_ns, annotation))

    def end(self) -> None:
        ended_ns = time.time_ns()
        name, began_ns, annotation = self._open.pop()
        self._ranges.append(Range(name, began_ns, ended_ns, len(self._open)))
        self._samples.append(self._sample(ended_ns))
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def request_began(self, request_id: str) -> None:
        self._began_requests[request_id] = time.time_ns()

    def request_ended(self, request_id: str) -> None:
        began_ns = self._began_requests.pop(request_id, None)
        if began_ns is not None:
            self._requests.append(RequestSpan(request_id, began_ns, time.time_ns()))

    def _sample_until_stopped(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._samples.append(self._sample())

    def _sample(self, at_ns: int | None = None) -> MemoryReading:
        """Sample the memory held at `at_ns`, a moment ago; by default at the end of the call."""
        host_rss = int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE_BYTES
        cuda = initialized_cuda()
        device = () if cuda is None else (cuda.memory_allocated(), cuda.memory_reserved())
        return MemoryReading(time.time_ns() if at_ns is None else at_ns, host_rss, *device)


def initialized_cuda() -> Any:
    """Return `torch.cuda` if this process has initialised it; never initialises it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _waited_ns() -> int | None:
    """Total time in which this process's threads were ready to run and had no core."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except FileNotFoundError:
            if task.exists():
                return None  # a kernel that does not count it
        except (OSError, ValueError, IndexError):
            return None
    return total
