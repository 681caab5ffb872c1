"""The schedule of a window's requests: a fixed number at a time, or given times regardless of the server."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from omni_cli.openai_api.client import Outcome

Send = Callable[[int, float], Coroutine[Any, Any, Outcome]]
"""Sends request `index`, which is due at the given time of `time.perf_counter`."""

_TIMER_S = 0.0015
"""The event loop wakes up to a millisecond late; the remaining time is spent polling the clock."""

MIN_REQUESTS = 8


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request once the last one is answered."""

    concurrency: int

    @property
    def settings(self) -> dict[str, object]:
        return {"concurrency": self.concurrency}

    @property
    def default_requests(self) -> int:
        return max(MIN_REQUESTS, 4 * self.concurrency)

    async def run(self, send: Send, count: int, number: int) -> list[Outcome]:
        """Send `count` requests and wait for the last answer; outcomes in the order of the requests."""
        outcomes: dict[int, Outcome] = {}
        indices = iter(range(count))

        async def work() -> None:
            for index in indices:
                outcomes[index] = await send(index, time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.concurrency, count)):
                group.create_task(work())
        return [outcomes[index] for index in range(count)]


@dataclass(frozen=True)
class OpenLoop:
    """Requests as a Poisson process of `rate` per second, or all at once if it is infinite.

    With `trace`, arrival times in seconds, as in the trace, but faster or slower so that their mean rate is `rate`.
    """

    rate: float
    seed: int
    trace: tuple[float, ...] | None = None

    @property
    def settings(self) -> dict[str, object]:
        # JSON has no infinity.
        rate: dict[str, object] = {"request_rate": "inf" if math.isinf(self.rate) else self.rate}
        return {**rate, "arrivals": "trace"} if self.trace else rate

    @property
    def default_requests(self) -> int:
        if self.trace is not None:
            return len(self.trace)
        return 64 if math.isinf(self.rate) else max(MIN_REQUESTS, min(math.ceil(4 * self.rate), 1024))

    async def run(self, send: Send, count: int, number: int) -> list[Outcome]:
        """Send `count` requests when they are due, even if earlier answers are outstanding."""
        if self.trace is None:
            times = arrival_times(self.rate, count, seed=self.seed, number=number)
        else:
            times = [due_s * trace_rate(self.trace) / self.rate for due_s in self.trace]
        began_s = time.perf_counter()
        tasks: list[asyncio.Task[Outcome]] = []
        async with asyncio.TaskGroup() as group:
            for index, offset_s in enumerate(times):
                due_s = began_s + offset_s
                await _until(due_s)
                tasks.append(group.create_task(send(index, due_s)))
        return [task.result() for task in tasks]


Traffic = ClosedLoop | OpenLoop


async def _until(due_s: float) -> None:
    left_s = due_s - time.perf_counter()
    if left_s > _TIMER_S:
        await asyncio.sleep(left_s - _TIMER_S)
    # Yield at least once, so that a request that is due is sent before the next one is considered.
    await asyncio.sleep(0)
    while time.perf_counter() < due_s:
        await asyncio.sleep(0)


def trace_rate(arrivals_s: Sequence[float]) -> float:
    """Return the mean rate of a trace per second: its times begin with 0 and do not all equal it."""
    return float(f"{len(arrivals_s) / arrivals_s[-1]:.6g}")


def arrival_times(rate: float, count: int, *, seed: int, number: int) -> list[float]:
    """Return `count` times in seconds from the window's start, ascending; all 0 for an infinite `rate` (per second).

    A Poisson process of that rate, under the condition that `count` requests come within `count / rate` seconds:
    its times are `count` independent uniform ones, sorted. Every window thus offers exactly `rate`. Equal seeds and
    iteration numbers give equal times.
    """
    if math.isinf(rate):
        return [0.0] * count
    source = random.Random(f"arrivals/{seed}/{number}")
    length_s = count / rate
    return sorted(source.uniform(0.0, length_s) for _ in range(count))
