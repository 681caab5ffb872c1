"""The schedule of a window's requests: a fixed number at a time, or given times regardless of the server."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from msgspec import Struct

from omni_cli.openai_api.client import Outcome

Send = Callable[[int, float], Coroutine[Any, Any, Outcome]]
"""Sends request `index`, which is due at the given time of `time.perf_counter`; raises for no failure of it."""

_TIMER_S = 0.0015
"""The event loop wakes up to a millisecond late; the remaining time is spent polling the clock."""

MIN_REQUESTS = 8


class ClosedLoop(Struct, frozen=True):
    """`concurrency` clients, each of which sends its next request once the last one is answered."""

    concurrency: int

    @property
    def settings(self) -> dict[str, object]:
        return {"concurrency": self.concurrency}

    @property
    def default_requests(self) -> int:
        return max(MIN_REQUESTS, 4 * self.concurrency)


class _Window(Struct):
    """Requests that the clients send; `answered` is done with the last answer."""

    send: Send
    count: int
    indices: Iterator[int]
    answered: asyncio.Future[None]
    outcomes: dict[int, Outcome] = {}


class Clients:
    """The clients of a closed loop, which go on from window to window.

    Each begins with a request of `send_extra`, so that the burst of the beginning is in no window. They send more of
    these while the last requests of a window are answered, and until the next one begins: every request of a window is
    answered under the whole load. Without `send_extra`, they wait.
    """

    def __init__(self, concurrency: int, send_extra: Send | None = None) -> None:
        self._concurrency = concurrency
        self._send_extra = send_extra
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = asyncio.Event()
        self._is_ending = False
        self.num_extras = 0
        """The number of requests so far that are in no window."""
        self.burst: list[Outcome] = []
        """The outcomes of the requests that all clients sent at once when they last began."""

    @property
    def are_busy(self) -> bool:
        return bool(self._tasks)

    async def window(self, send: Send, count: int) -> list[Outcome]:
        """Send `count` requests and wait for their answers; outcomes in the order of the requests."""
        self._window = _Window(send, count, iter(range(count)), asyncio.get_running_loop().create_future())
        if not self._tasks:
            self._is_ending, self.burst = False, []
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        self._wake()
        await asyncio.wait([self._window.answered, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()  # raises: a client ends only so
        return [self._window.outcomes[index] for index in range(count)]

    async def rest(self) -> None:
        """Send no more requests, and wait for the answers to those that were sent."""
        self._is_ending = True
        self._wake()
        await asyncio.gather(*self._tasks)
        self._tasks = []

    async def close(self) -> None:
        """End at once. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _wake(self) -> None:
        self._begun.set()
        self._begun = asyncio.Event()

    async def _work(self) -> None:
        if self._send_extra is not None:
            self.burst.append(await self._extra(self._send_extra))
        has_failed = False
        while not self._is_ending:
            window = self._window
            index = next(window.indices, None)
            if index is not None:
                window.outcomes[index] = await window.send(index, time.perf_counter())
                if len(window.outcomes) == window.count:
                    window.answered.set_result(None)
            elif self._send_extra is None or has_failed:
                # A server that refuses at once would be asked without a pause.
                has_failed = False
                await self._begun.wait()
            else:
                has_failed = (await self._extra(self._send_extra)).failure is not None

    async def _extra(self, send: Send) -> Outcome:
        self.num_extras += 1
        return await send(self.num_extras - 1, time.perf_counter())


class OpenLoop(Struct, frozen=True):
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

    def offered_s(self, count: int) -> float | None:
        """Return the seconds in which `count` requests arrive; None if they come at once."""
        return None if math.isinf(self.rate) else count / self.rate

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
