"""Connections that send nothing, little or nonsense: they end, and others are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from support.omni_server import IMAGES, OmniServer

POST = f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
# 4096, and the requests that may be in flight.
MAX_CONNECTIONS = 4160


@contextlib.contextmanager
def connected(server: OmniServer) -> Iterator[socket.socket]:
    with socket.create_connection((server.ready["host"], server.ready["port"]), timeout=60) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Return the status and the error of an answer after which the connection is closed."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            content += more
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_idle_connections_make_room_for_others_and_leave_one_line_in_the_log(image_server: OmniServer) -> None:
    """Ten thousand of them had stopped the server, at a megabyte of log per second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * MAX_CONNECTIONS:
        pytest.skip("needs more open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logged = len(image_server.raw_log)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        idle = [stack.enter_context(connected(image_server)) for _ in range(MAX_CONNECTIONS + 200)]
        for _ in range(3):
            assert image_server.request("POST", IMAGES, {"prompt": "x"}).status == 200
        image_server.wait_until(lambda: all(map(is_closed, idle[:200])))
        assert len(image_server.raw_log) - logged < 10_000
        lines = [line for line in image_server.log("message") if "connections are open" in line["message"]]
        assert len(lines) == 1 and lines[0]["message"].startswith(
            f"{MAX_CONNECTIONS} connections are open, the maximum"
        )


def test_headers_have_ten_seconds(image_server: OmniServer) -> None:
    began = time.monotonic()
    with connected(image_server) as silent, connected(image_server) as slow, connected(image_server) as kept:
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        open_ones = [silent, slow, kept]
        while open_ones and time.monotonic() < began + 60:
            for connection in (slow, kept):
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            time.sleep(0.5)
            open_ones = [connection for connection in open_ones if not is_closed(connection)]
            if time.monotonic() < began + 8:
                assert len(open_ones) == 3
    assert not open_ones


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 this is TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000,
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5000,
    ],
    ids=["tls", "two hosts", "long", "negative length", "two lengths", "no chunk", "tiny chunks"],
)
def test_what_is_not_http_is_refused_in_the_shape_of_all_errors(image_server: OmniServer, content: bytes) -> None:
    with connected(image_server) as connection:
        connection.sendall(content)
        status, error = answer(connection)
    assert status == 400 and error["code"] == "invalid_http"


def test_a_body_in_small_chunks(image_server: OmniServer) -> None:
    """As a client sends it that writes each value of a document by itself."""
    pieces = [b'{"prompt": "x", "user": "', *[b"0123456789"] * 1000, b'"}']
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    with connected(image_server) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.nightly
def test_an_answer_that_is_not_read_for_half_a_minute(image_server: OmniServer) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect((image_server.ready["host"], image_server.ready["port"]))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        time.sleep(45)
        connection.settimeout(10)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(65536):
                received += len(more)
    assert received < 100_000
