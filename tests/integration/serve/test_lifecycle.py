"""Start and end of the server."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.in_process import run_here
from support.omni_process import run_omni
from support.omni_server import CHAT, EDITS, IMAGES, Caller, OmniServer

from omni_cli.requests.encoding import encode_png

LONG = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "ignore_eos": True, "stream": True}
ENDLESS = {"prompt": "a cube", "num_inference_steps": 1000, "size": "512x512"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    return folder


def health(server: OmniServer) -> int | None:
    """Return the status of `/health`; None without a listener."""
    try:
        return server.request("GET", "/health").status
    except ConnectionError:
        return None


def test_one_ready_line_with_the_address_and_a_stop_signal_that_drains_requests(folder: Path) -> None:
    server = OmniServer(folder, warm=False)
    assert server.ready["schema"] == "omni.serve/1"
    assert server.ready["url"] == f"http://127.0.0.1:{server.ready['port']}"
    assert server.ready["pid"] == server.process.pid and server.ready["profile"] == "tiny-omni"
    # Who reads the line may ask at once.
    assert server.request("POST", CHAT, {"messages": LONG["messages"], "max_tokens": 2}).status == 200
    server.wait_until(lambda: server.log("request"))  # it is written when the answer has left
    caller = Caller(server, CHAT, LONG)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 1)
    server.process.popen.send_signal(signal.SIGTERM)
    server.wait_until(lambda: server.log("draining"))
    server.wait_until(lambda: health(server) is None, timeout_s=10)
    ended = server.process.end()  # without another signal, which would end it at once
    caller.join()
    assert caller.result.status == 200
    assert caller.result.body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in caller.result.body
    assert (ended.code, ended.out, ended.leftovers) == (0, "", ())
    lines = [json.loads(line) for line in server.raw_log.splitlines()]
    assert [line["event"] for line in lines if line.get("path") in (None, CHAT)] == [
        "engine_ready",
        "request",
        "draining",
        "request",
        "stopped",
    ]


def test_a_stop_signal_does_not_wait_for_media_that_are_decoded(folder: Path) -> None:
    """And other media do not wait, either."""
    server = OmniServer(folder, "--profile", "tiny-edit")
    file = {"image": ("a.png", encode_png(np.zeros((64, 64, 3), np.uint8)))}
    form = httpx.Request("POST", server.url, files=file, data={"prompt": "snow", "num_inference_steps": "2"})
    sent: Any = {"body": form.read(), "content_type": form.headers["content-type"]}
    assert server.request("POST", EDITS, **sent).status == 200
    (decoder,) = server.media_processes()
    decoder.suspend()
    hanging = Caller(server, EDITS, **sent)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 1)
    assert server.request("POST", EDITS, **sent).status == 200
    ended = server.stop()
    hanging.join()
    assert hanging.result.status == 503 and hanging.result.error["code"] == "shutting_down"
    assert (ended.code, ended.leftovers) == (0, ())


def test_connections_without_a_request_do_not_delay_the_end(folder: Path) -> None:
    """A request that never arrives, and answers that nobody reads, are not waited for until the drain timeout."""
    server = OmniServer(folder, "--profile", "tiny-image")
    post = f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\n".encode()
    get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for content in (b"", post, post + b"Content-Length: 100\r\n\r\n{", get * 20):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((server.ready["host"], server.ready["port"]))
            connection.sendall(content)
        server.wait_until(lambda: len(server.log("request")) > 2)
        time.sleep(0.5)
        began = time.monotonic()
        ended = server.stop()
        assert time.monotonic() - began < 15
    assert (ended.code, ended.leftovers) == (0, ())
    assert [line["status"] for line in server.log("request") if line["path"] == IMAGES] == [503]


@pytest.mark.nightly
def test_requests_beyond_the_drain_timeout_fail(folder: Path) -> None:
    """The server warns that it is open to everybody."""
    server = OmniServer(folder, "--profile", "tiny-image", "--host", "0.0.0.0", "--drain-timeout", "1")
    caller = Caller(server, IMAGES, ENDLESS)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 1)
    began = time.monotonic()
    ended = server.stop()
    assert 1 < time.monotonic() - began < 10
    caller.join()
    assert caller.result.status == 503 and caller.result.error["code"] == "shutting_down"
    assert (ended.code, ended.leftovers) == (0, ())
    assert server.raw_log.startswith("warning: anyone who can reach 0.0.0.0 can use this server\n\nhint: set a key")


@pytest.mark.nightly
def test_a_second_signal_stops_at_once(folder: Path) -> None:
    server = OmniServer(folder, "--profile", "tiny-image")
    caller = Caller(server, IMAGES, ENDLESS)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 1)
    server.process.popen.send_signal(signal.SIGTERM)
    server.wait_until(lambda: server.log("draining"))
    time.sleep(0.6)  # two signals that come together are one
    server.process.popen.send_signal(signal.SIGTERM)
    assert server.process.popen.wait(5) == 130
    caller.join()
    ended = server.stop()
    assert not [left for left in ended.leftovers if left.startswith("process")]


def test_it_lives_but_is_not_ready_while_it_loads(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = OmniServer(folder, "--port", str(port), wait=False, warm=False)
    server.ready = {"host": "127.0.0.1", "port": port}
    assert server.wait_until(lambda: health(server)) == 200
    ready = server.request("GET", "/ready")
    assert ready.status == 503 and ready.document["status"] == "starting"
    early = server.request("POST", CHAT, {"messages": LONG["messages"]})
    assert early.status == 503 and int(early.headers["retry-after"]) >= 1
    ended = server.stop()
    assert (ended.code, ended.out, ended.leftovers) == (0, "", ())


def test_an_address_in_use_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run_omni(folder, "serve", "--port", str(taken.getsockname()[1]))
    ended.check_error(2, "cannot serve on 127.0.0.1:", "Address already in use", "`--port`")
    assert ended.leftovers == () and not ended.started_others


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--host", "no-such-host.invalid"), "cannot serve on `no-such-host.invalid`"),
        (("--host", "203.0.113.7"), "cannot serve on 203.0.113.7"),
        (("--api-key", ""), "the API key is empty"),
        (("--profile", "no-such"), "no profile named `no-such`"),
        (("--max-requests", "0"), "--max-requests"),
        (("--model", "/no/such/folder"), "/no/such/folder"),
    ],
)
def test_mistakes_end_before_anything_starts(folder: Path, arguments: tuple[str, ...], part: str) -> None:
    ended = run_here(folder, "serve", "--port", "0", *arguments)
    ended.check_error(2, part)
    assert not ended.started_others
