"""Pieces of a CPU's work at the same time, each on threads of its own.

Threads that share operations wait for each other in each of thousands of short ones; those of separate pieces do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

# vLLM replaces `torch.set_num_threads` by a function without effect. OpenMP's number belongs to the calling thread.
from torch._C import set_num_threads
from torch.utils._python_dispatch import _get_current_dispatch_mode

T = TypeVar("T")


class Lanes:
    """At most `count` pieces at the same time, among which torch's threads of the caller are divided."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Its threads start with the first pieces. The caller's thread is a lane, too.
        self._pool = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="omni-lane")

    def run(self, pieces: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of `pieces`. A single piece has all threads, and so have all if there is one lane.

        Raises the error of a piece once all have ended. Under a mode that observes operations, which it does in its own
        thread only, pieces run one after another.
        """
        if self.count == 1 or len(pieces) < 2 or _get_current_dispatch_mode() is not None:
            return [piece() for piece in pieces]
        first, *others = pieces
        num_threads = torch.get_num_threads()
        is_inference = torch.is_inference_mode_enabled()

        def in_lane(piece: Callable[[], T]) -> T:
            set_num_threads(max(1, num_threads // len(pieces)))
            with torch.inference_mode(is_inference):
                return piece()

        futures = [self._pool.submit(in_lane, piece) for piece in others]
        try:
            made = in_lane(first)
        finally:
            wait(futures)
            set_num_threads(num_threads)
        return [made, *(future.result() for future in futures)]
