"""Processors for the OpenMP threads of a diffusion stage.

The stage's thread wakes the others thousands of times a second. Linux may leave them on its processor, where each waits
for the other, though a second one is idle: after an AR stage, whose work it counts for a while.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

# The processor that a thread last ran on, among the fields of its `stat` after its name (proc_pid_stat(5)).
_PROCESSOR = 36


class OwnProcessors:
    """Keeps this process's OpenMP threads off its main thread's processor, from `keep_off` to `give_back`.

    Does nothing where there is no other processor, or where threads cannot be moved.
    """

    def __init__(self) -> None:
        # While threads are kept off a processor, those that they may use otherwise.
        self._allowed: dict[int, set[int]] | None = None
        self._threads: list[int] = []
        self._num_links = 0

    def keep_off(self) -> None:
        if self._allowed is not None or not hasattr(os, "sched_setaffinity"):
            return
        if (num_links := Path("/proc/self/task").stat().st_nlink) != self._num_links:  # one for each thread
            self._threads, self._num_links = openmp_threads(), num_links
        processor, self._allowed = _processor(), {}
        for thread in self._threads:
            # Where the system refuses, or the thread has ended, nothing is lost but time.
            with contextlib.suppress(OSError):
                allowed = os.sched_getaffinity(thread)
                if _is_ours(thread) and (others := allowed - {processor}):
                    os.sched_setaffinity(thread, others)
                    self._allowed[thread] = allowed

    def give_back(self) -> None:
        for thread, allowed in (self._allowed or {}).items():
            with contextlib.suppress(OSError):
                if _is_ours(thread):
                    os.sched_setaffinity(thread, allowed)
        self._allowed = None


def openmp_threads() -> list[int]:
    """Threads with the main thread's name that Python did not start; other libraries name theirs."""
    pythons = {thread.native_id for thread in threading.enumerate()}
    tasks = Path("/proc/self/task")
    name = (tasks / str(threading.main_thread().native_id) / "comm").read_bytes()
    found = []
    for thread in (int(path.name) for path in tasks.iterdir()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if thread not in pythons and (tasks / str(thread) / "comm").read_bytes() == name:
                found.append(thread)
    return found


def _is_ours(thread: int) -> bool:
    """Tell whether this process has the thread: the number of one that has ended may be another process's."""
    return Path(f"/proc/self/task/{thread}").exists()


def _processor() -> int:
    """The processor that this process's main thread runs on, or last ran on."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_PROCESSOR])
