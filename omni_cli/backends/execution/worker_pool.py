"""Tasks that run on a CPU at the same time, each on threads of its own.

Threads that share operations wait for each other in each of thousands of short ones; those of separate tasks do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Generic, TypeVar

import torch

# vLLM replaces `torch.set_num_threads` by a function without effect. OpenMP's number belongs to the calling thread.
from torch._C import set_num_threads
from torch.utils._python_dispatch import _get_current_dispatch_mode

from omni_cli.backends.execution.ranges import is_recorded

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """At most `num_workers` tasks at the same time, among which torch's threads of the caller are divided.

    With one worker, tasks run in the caller's thread. They also do under a mode that observes operations, because it
    observes its own thread only.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        # Its threads start with the first tasks.
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="omni-worker")
        self._started: list[Future[T]] = []

    @property
    def num_idle(self) -> int:
        return self.num_workers - sum(not future.done() for future in self._started)

    def start(self, tasks: Sequence[Callable[[], T]]) -> None:
        """Start at most `num_idle` tasks. One that runs alone has all threads."""
        if self.num_workers == 1 or _get_current_dispatch_mode() is not None:
            self._started += [_run_here(task) for task in tasks]
            return
        num_threads = torch.get_num_threads()
        is_inference = torch.is_inference_mode_enabled()
        share = max(1, num_threads // max(1, len(tasks) + self.num_workers - self.num_idle))

        def in_worker(task: Callable[[], T]) -> T:
            torch.get_num_threads()  # a new thread takes the process's number with the first use of any
            set_num_threads(share)
            try:
                with torch.inference_mode(is_inference):
                    return task()
            finally:
                set_num_threads(num_threads)  # also the number that threads begin with

        # Ranges are recorded in this thread only, so it is one of the workers while they are.
        num_here = 1 if is_recorded() else 0
        submitted = [self._pool.submit(in_worker, task) for task in tasks[num_here:]]
        self._started += [*(_run_here(partial(in_worker, task)) for task in tasks[:num_here]), *submitted]

    def finished(self) -> list[T]:
        """Wait until a task has ended, if any was started; return the results of all that have, in the order of start.

        If a task failed, wait until all have ended, forget them, and raise its error.
        """
        wait(self._started, return_when=FIRST_COMPLETED)
        ended = [future for future in self._started if future.done()]
        if any(future.exception() for future in ended):
            self.wait_for_all()
            ended, self._started = self._started, []
        self._started = [future for future in self._started if future not in ended]
        return [future.result() for future in ended]

    def wait_for_all(self) -> None:
        """Wait until all tasks have ended."""
        wait(self._started)


def _run_here(task: Callable[[], T]) -> Future[T]:
    """Run a task in this thread."""
    future: Future[T] = Future()
    try:
        future.set_result(task())
    except Exception as error:  # noqa: BLE001 - raised by `finished`
        future.set_exception(error)
    return future
