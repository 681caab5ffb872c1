"""Schedules of requests: a fixed number at a time, or times that no answer changes."""

from __future__ import annotations

import asyncio
import itertools
import math
import time

import pytest

from omni_cli.measure.loadtest.traffic import Clients, ClosedLoop, OpenLoop, Send, Traffic, arrival_times
from omni_cli.openai_api.client import Outcome, RequestFailure


class Server:
    """Takes `seconds` for each request, or until it has so many `together`, and notes what it got."""

    def __init__(self, seconds: float, together: int = 0) -> None:
        self.seconds, self.together = seconds, together
        self.has_all = asyncio.Event()
        self.inside = self.most = 0
        self.seen: list[int] = []

    async def send(self, index: int, due_s: float) -> Outcome:
        sent_s = time.perf_counter()
        self.seen.append(index)
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == self.together:
            self.has_all.set()
        await (asyncio.wait_for(self.has_all.wait(), 60) if self.together else asyncio.sleep(self.seconds))
        self.inside -= 1
        return Outcome(due_s, sent_s, time.perf_counter())


async def send_all(traffic: Traffic, send: Send, count: int, number: int = 0) -> list[Outcome]:
    if isinstance(traffic, OpenLoop):
        return await traffic.run(send, count, number)
    clients = Clients(min(traffic.concurrency, count))
    try:
        return await clients.window(send, count)
    finally:
        await clients.close()


def run(traffic: Traffic, server: Server, count: int, number: int = 0) -> list[Outcome]:
    return asyncio.run(send_all(traffic, server.send, count, number))


@pytest.mark.parametrize(("concurrency", "count"), [(1, 5), (3, 10), (8, 5)])
def test_a_closed_loop_has_so_many_inside_and_sends_each_once(
    concurrency: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(0.05)
    looks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(looks)))
    outcomes = run(ClosedLoop(concurrency), server, count)
    assert server.most == min(concurrency, count)
    assert sorted(server.seen) == list(range(count)) and len(outcomes) == count
    assert all(outcome.sent_s - outcome.due_s == 1 for outcome in outcomes), "nothing comes between"


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """A server that answers none before the last still gets every request when it is due."""
    rate, count = 100.0, 30
    server = Server(0.0, together=count)
    outcomes = run(OpenLoop(rate, seed=3), server, count, number=2)
    due = [outcome.due_s for outcome in outcomes]
    expected = arrival_times(rate, count, seed=3, number=2)
    assert [time_s - due[0] for time_s in due] == pytest.approx([time_s - expected[0] for time_s in expected], abs=1e-6)
    assert server.most == count, "all of them are open at the same time"
    # Never too early; how late depends on what else this machine does.
    assert all(outcome.sent_s >= outcome.due_s for outcome in outcomes)


def test_delays_of_the_client_are_recorded_as_lag() -> None:
    """Latency counts from when a request was due: a stalled client must not make a server look fast."""

    async def stall(index: int, due_s: float) -> Outcome:
        sent_s = time.perf_counter()
        time.sleep(0.05)
        return Outcome(due_s, sent_s, time.perf_counter())

    outcomes = asyncio.run(OpenLoop(1000.0, seed=0).run(stall, 5, 0))
    lags = [outcome.sent_s - outcome.due_s for outcome in outcomes]
    assert lags[-1] > 0.15
    assert all(outcome.done_s - outcome.due_s >= lag + 0.05 for outcome, lag in zip(outcomes, lags, strict=True))


def test_all_at_once() -> None:
    server = Server(0.0, together=20)
    assert len(run(OpenLoop(math.inf, seed=0), server, 20)) == 20
    assert server.most == 20


def test_an_interrupt_leaves_no_request_behind() -> None:
    async def interrupted(traffic: Traffic, server: Server) -> int:
        task = asyncio.create_task(send_all(traffic, server.send, 10))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        return len(asyncio.all_tasks()) - 1

    for traffic in (ClosedLoop(4), OpenLoop(1000.0, seed=0)):
        assert asyncio.run(interrupted(traffic, Server(60))) == 0


def test_clients_go_on_between_windows() -> None:
    """Each begins with a request outside of the windows; none is idle while the last ones of a window are answered."""
    server, extra = Server(0.05), Server(0.05)

    async def slow(index: int, due_s: float) -> Outcome:
        outcome = await server.send(index, due_s)
        while index == 0 and len(extra.seen) < 13:
            await asyncio.sleep(0.01)
        return outcome

    async def measure() -> tuple[list[Outcome], int]:
        clients = Clients(4, extra.send)
        outcomes = await clients.window(slow, 8)
        burst, before = len(clients.burst), len(extra.seen)
        while len(extra.seen) == before:
            await asyncio.sleep(0.01)
        await clients.window(server.send, 8)
        await clients.rest()
        await asyncio.sleep(0.12)
        assert len(clients.burst) == 4 and clients.num_extras == len(extra.seen)
        assert sorted(extra.seen) == list(range(len(extra.seen)))
        await clients.window(server.send, 8)
        await clients.close()
        return outcomes, burst

    # The three others go on while the last one is answered, and all while there is no window.
    outcomes, burst = asyncio.run(asyncio.wait_for(measure(), 60))
    assert burst == 4 and server.seen.count(0) == 3 and len(server.seen) == 24
    assert [outcome.due_s for outcome in outcomes] == sorted(outcome.due_s for outcome in outcomes)


def test_clients_do_not_ask_a_server_that_refuses_without_a_pause() -> None:
    extra = 0

    async def refused(_index: int, due_s: float) -> Outcome:
        nonlocal extra
        extra += 1
        return Outcome(due_s, due_s, due_s, failure=RequestFailure("HTTP 429", "no"))

    async def measure() -> None:
        clients = Clients(4, refused)
        for _ in range(2):
            await clients.window(Server(0.0).send, 8)
            await asyncio.sleep(0.05)
        await clients.close()

    asyncio.run(measure())
    assert extra <= 4 * 3


def test_an_error_in_a_client_ends_the_window() -> None:
    async def broken(_index: int, _due_s: float) -> Outcome:
        raise MemoryError

    with pytest.raises(MemoryError):
        asyncio.run(send_all(ClosedLoop(2), broken, 4))


def test_defaults_and_settings() -> None:
    assert ClosedLoop(1).default_requests == 8 and ClosedLoop(32).default_requests == 128
    assert OpenLoop(0.5, 0).default_requests == 8 and OpenLoop(50, 0).default_requests == 200
    assert OpenLoop(math.inf, 0).settings == {"request_rate": "inf"}
