"""Pieces of a CPU's work at the same time, each on threads of its own.

Threads that share operations wait for each other in each of thousands of short ones; those of separate pieces do not.
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

from omni_cli.execution.ranges import is_recorded

T = TypeVar("T")


class Lanes(Generic[T]):
    """At most `count` pieces at the same time, among which torch's threads of the caller are divided.

    If there is one lane, pieces run in the caller's thread, and so they do under a mode that observes operations, which
    it does in its own thread only.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # Its threads start with the first pieces.
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="omni-lane")
        self._started: list[Future[T]] = []

    @property
    def num_free(self) -> int:
        return self.count - sum(not each.done() for each in self._started)

    def start(self, pieces: Sequence[Callable[[], T]]) -> None:
        """Start at most `num_free` pieces. One that runs alone has all threads."""
        if self.count == 1 or _get_current_dispatch_mode() is not None:
            self._started += [_ended(piece) for piece in pieces]
            return
        num_threads = torch.get_num_threads()
        is_inference = torch.is_inference_mode_enabled()
        share = max(1, num_threads // max(1, len(pieces) + self.count - self.num_free))

        def in_lane(piece: Callable[[], T]) -> T:
            torch.get_num_threads()  # a new thread takes the process's number with the first use of any
            set_num_threads(share)
            try:
                with torch.inference_mode(is_inference):
                    return piece()
            finally:
                set_num_threads(num_threads)  # also the number that threads begin with

        # While ranges are recorded, which they are in this thread only, it is one of the lanes.
        own = 1 if is_recorded() else 0
        others = [self._pool.submit(in_lane, piece) for piece in pieces[own:]]
        self._started += [*(_ended(partial(in_lane, piece)) for piece in pieces[:own]), *others]

    def ended(self) -> list[T]:
        """Wait until a piece has ended, if any was started; return the results of all that have, in the order of start.

        Raises the error of a piece once all have ended, and forgets them.
        """
        wait(self._started, return_when=FIRST_COMPLETED)
        ended = [each for each in self._started if each.done()]
        if any(each.exception() for each in ended):
            self.settle()
            ended, self._started = self._started, []
        self._started = [each for each in self._started if each not in ended]
        return [each.result() for each in ended]

    def settle(self) -> None:
        """Wait until all pieces have ended."""
        wait(self._started)


def _ended(piece: Callable[[], T]) -> Future[T]:
    """Run a piece in this thread."""
    future: Future[T] = Future()
    try:
        future.set_result(piece())
    except Exception as error:  # noqa: BLE001 - raised by `ended`
        future.set_exception(error)
    return future
