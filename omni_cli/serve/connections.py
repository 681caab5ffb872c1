"""Open connections: how many there may be, and how long one may keep the server waiting."""

from __future__ import annotations

import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from omni_cli.serve.errors import RETRY_AFTER_S, APIError
from omni_cli.serve.exchange import Exchange

_HEADERS_TIMEOUT_S = 10.0
# The kernel ends a connection whose client reads nothing for this long, although there is something to read.
UNREAD_TIMEOUT_MS = 30_000
# After a stop signal: a connection that sends nothing in this time is closed.
_STALLED_S = 1.5
_MAX_IDLE = 4096
# Parsing may take 1 ms per KiB, for which it holds the event loop.
_READ_BYTES = 16 * 1024
_TINY_BYTES = 64
_MAX_TINY_PIECES = 1000


def max_connections(max_requests: int) -> int:
    """Return how many connections may be open, and raise the limit of open files as far as they need it.

    They use up to half of the open files; the engine, media and videos need the others.
    """
    wanted = _MAX_IDLE + max_requests
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * wanted:
        soft = min(2 * wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft // 2), 1)


class _Parser(h11.Connection):
    """h11 needs 12 us per chunk of a body, however small: chunks of single bytes would hold up all other requests."""

    _num_pieces = 0
    _num_bytes = 0
    connection: Connection

    def send(self, event: Any) -> Any:
        """Add the trailers of the response, which uvicorn cannot send."""
        if isinstance(event, h11.EndOfMessage) and self.connection.cycle is not None:
            event = h11.EndOfMessage(headers=Exchange.pop_trailers(dict(self.connection.cycle.scope)))
        return super().send(event)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._num_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._num_bytes += len(event.data)
            if self._num_pieces > _MAX_TINY_PIECES + self._num_bytes // _TINY_BYTES:
                raise h11.RemoteProtocolError("the chunks are too small")
        return event


class Connection(H11Protocol):
    """A connection of uvicorn's with a time limit for headers, one of at most `most` open ones.

    `waiting`, which all connections share, are those without a complete request, in the order in which they began to
    wait. A new connection beyond the limit closes the first of them. uvicorn's keep-alive time limit ends with the
    first byte of a request, and this one begins.
    """

    def __init__(self, *arguments: Any, most: int, waiting: dict[Connection, None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Parser(h11.SERVER)
        self.conn.connection = self
        self._most = most
        self._waiting = waiting
        self._headers_timer: Any = None

    def connection_made(self, transport: Any) -> None:
        is_full = len(self.connections) >= self._most
        super().connection_made(transport)
        transport.max_size = _READ_BYTES
        if is_full and not self._make_room():
            message = f"all {self._most} connections of this server are busy"
            self._refuse(APIError(503, message, code="too_many_connections", retry_after_s=RETRY_AFTER_S))
            return
        self._waiting[self] = None
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_state()
        if self._headers_timer is None and not self._in_flight:
            self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_state()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the shape of all errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            message = "the request is not valid HTTP, or its headers are too long or its chunks too small"
            self._refuse(APIError(400, message, code="invalid_http"))
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(_STALLED_S, self._end_stalled, self.transport.get_write_buffer_size())

    @property
    def _in_flight(self) -> bool:
        """True from the end of a request's headers to the end of its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def _note_state(self) -> None:
        if self._in_flight and self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
        if self._in_flight and not self.cycle.more_body:
            self._waiting.pop(self, None)
        elif self in self.connections:
            self._waiting.setdefault(self)

    def _expect_headers(self) -> None:
        self._headers_timer = self.loop.call_later(_HEADERS_TIMEOUT_S, self.transport.close)

    def _make_room(self) -> bool:
        """Close the connection that has waited longest; return False if none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self.logger.warning("%d connections are open, the maximum: closing those that wait longest", self._most)
        self.connections.discard(oldest)
        oldest._forget()
        oldest.transport.abort()
        return True

    def _forget(self) -> None:
        self._waiting.pop(self, None)
        if self._headers_timer is not None:
            self._headers_timer.cancel()

    def _refuse(self, error: APIError) -> None:
        """Answer without the application, and close."""
        response = error.response()
        head = h11.Response(status_code=error.status, headers=[*response.raw_headers, (b"connection", b"close")])
        for event in (head, h11.Data(bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _end_stalled(self, unsent: int) -> None:
        """End a connection whose client reads nothing, so that it does not delay the server's end."""
        left = self.transport.get_write_buffer_size()
        if left and left == unsent:
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(_STALLED_S, self._end_stalled, left)
