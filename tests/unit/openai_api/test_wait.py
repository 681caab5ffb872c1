"""Waiting for servers that start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from omni_cli.core.errors import OmniError
from omni_cli.openai_api import client


@contextmanager
def server(statuses: list[int], seen: list[str | None]) -> Iterator[str]:
    """A server whose `/ready` answers with these codes, the last one for ever."""
    loop, started, address = asyncio.new_event_loop(), threading.Event(), ""

    async def ready(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({}, status=statuses.pop(0) if len(statuses) > 1 else statuses[0])

    async def start() -> None:
        nonlocal address
        app = web.Application()
        app.router.add_get("/ready", ready)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(10)
    yield address
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PROBE_PAUSE_S", 0.0)


@pytest.mark.parametrize("last", [200, 404])
def test_it_goes_on_when_the_server_is_ready_or_has_no_such_route(last: int) -> None:
    seen: list[str | None] = []
    with server([503, 503, last], seen) as url:
        client.wait_for_servers([url, url], "key", 60)
    assert seen == ["Bearer key"] * 3


def test_a_server_that_does_not_become_ready() -> None:
    with server([503], []) as url, pytest.raises(OmniError, match="rejects GET /ready: HTTP 503") as caught:
        client.wait_for_servers([url], None, 0.05)
    assert "`--wait`" in (caught.value.hint or "")


def test_a_server_that_does_not_listen() -> None:
    with pytest.raises(OmniError, match="connection refused") as caught:
        client.wait_for_servers(["http://127.0.0.1:1"], None, 0.05)
    assert "`--wait`" in (caught.value.hint or "")
