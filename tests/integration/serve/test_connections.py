"""Connections that send nothing, little or nonsense: others are served meanwhile."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from support.omni_server import IMAGES, OmniServer

POST = f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


@contextlib.contextmanager
def connected(server: OmniServer) -> Iterator[socket.socket]:
    with socket.create_connection((server.ready["host"], server.ready["port"]), timeout=60) as connection:
        yield connection


def status(connection: socket.socket) -> int:
    """Return the status of a response after which the connection is closed."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            content += more
    return int(content.split()[1])


def test_a_thousand_idle_connections_do_not_delay_others(image_server: OmniServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("needs more open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1000):
            stack.enter_context(connected(image_server))
        for _ in range(3):
            assert image_server.request("POST", IMAGES, {"prompt": "x"}).status == 200


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 this is TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000,
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
    ],
    ids=["tls", "two hosts", "long", "negative length", "two lengths", "no chunk"],
)
def test_what_is_not_http_is_refused(image_server: OmniServer, content: bytes) -> None:
    with connected(image_server) as connection:
        connection.sendall(content)
        assert status(connection) == 400
    assert image_server.request("GET", "/health").status == 200


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
