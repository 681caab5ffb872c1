"""One HTTP request and its response: its id, its deadline, its result, and its line of JSON in the log on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import math
import sys
import time
import traceback
import uuid
from dataclasses import dataclass, field
from typing import TextIO

from starlette.datastructures import Headers
from starlette.types import Scope

from omni_cli.config.bounds import MAX_NAME_LENGTH
from omni_cli.openai_api.routes import Route
from omni_cli.serve.errors import APIError

REQUEST_ID = "X-Request-Id"
SEED = "X-Seed"
FINISH_REASON = "X-Finish-Reason"
REQUEST_TIMEOUT = "X-Request-Timeout"
_SCOPE_KEY = "omni.exchange"


@dataclass
class Exchange:
    """`began_s` and `deadline_s` are on the event loop's clock; `notes` are further fields of its log line.

    `changes` has a sentence as a key for each thing that was changed about its requests.
    `error` is the kind of failure and `message` its sentence, `status` the one sent (None: none was), and the response
    `is_answered` once its last byte is. `headers` are further ones of the response, and `trailers` follow a stream.
    `route` is the path of its route, with the names of what varies.
    """

    request_id: str
    method: str
    path: str
    client: str | None
    began_s: float
    deadline_s: float
    route: str = "other"
    status: int | None = None
    sent_bytes: int = 0
    is_answered: bool = False
    is_shortened: bool = False
    num_output_tokens: int = 0
    error: str | None = None
    message: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    changes: dict[str, None] = field(default_factory=dict)

    @classmethod
    def begin(cls, scope: Scope, timeout_s: float, route: str) -> Exchange:
        """Create it for a request that has just arrived; its deadline is `timeout_s` from now."""
        now = asyncio.get_running_loop().time()
        client = scope.get("client")
        exchange = cls(
            request_id=_request_id(Headers(scope=scope).get(REQUEST_ID)),
            method=scope["method"],
            path=scope["path"],
            client=None if client is None else client[0],
            began_s=now,
            deadline_s=now + timeout_s,
            route=route,
        )
        scope[_SCOPE_KEY] = exchange
        return exchange

    @staticmethod
    def from_scope(scope: Scope) -> Exchange:
        exchange: Exchange = scope[_SCOPE_KEY]
        return exchange

    @staticmethod
    def pop_trailers(scope: Scope) -> list[tuple[str, str]]:
        """Take the trailers out, for the server's connection; none for HTTP/1.0, which has no place for them."""
        exchange: Exchange | None = scope.get(_SCOPE_KEY)
        if exchange is None or scope["http_version"] == "1.0":
            return []
        trailers, exchange.trailers = exchange.trailers, {}
        return list(trailers.items())

    def shorten(self, wanted: str | None) -> None:
        """Apply a client's own, earlier deadline, in seconds. Raises `APIError` for an invalid one."""
        if wanted is None:
            return
        try:
            timeout_s = float(wanted)
        except ValueError:
            timeout_s = math.nan
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise APIError(400, f"`{REQUEST_TIMEOUT}` must be a number of seconds greater than 0", code="invalid_value")
        self.deadline_s = min(self.deadline_s, self.began_s + timeout_s)
        self.is_shortened = True

    def lengthen(self, seconds: float) -> None:
        """Give a request that takes long by its nature more time, unless its client has named its own."""
        self.deadline_s += 0.0 if self.is_shortened else seconds

    def note_seed(self, seed: int) -> None:
        """Name the seed in the response and in the log."""
        self.headers[SEED] = str(seed)
        self.notes["seed"] = seed

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self.began_s


def new_id(prefix: str) -> str:
    """Return an id that no other request has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def unix_now() -> int:
    return int(time.time())


def _request_id(wanted: str | None) -> str:
    """Return the client's own id if it fits into a log line, else a new one."""
    if wanted and len(wanted) <= MAX_NAME_LENGTH and wanted.isascii() and wanted.isprintable():
        return wanted
    return uuid.uuid4().hex


PROBES = frozenset({Route.HEALTH, Route.READY})
"""Routes that are asked every few seconds, by the page as well, and need no key."""


class AccessLog:
    """One line of JSON per request but probes, and per server event. Never logs bodies, queries, headers or keys."""

    def __init__(self, stream: TextIO | None = None, *, only_failures: bool = False) -> None:
        self._stream = stream
        self._only_failures = only_failures

    def request(self, exchange: Exchange) -> None:
        """Log a request that has ended."""
        failed = exchange.error is not None
        if not failed and (self._only_failures or exchange.path in PROBES):
            return
        self.event(
            "request",
            request_id=exchange.request_id,
            client=exchange.client,
            method=exchange.method,
            path=exchange.path,
            status=exchange.status,
            duration_s=round(exchange.elapsed_s(), 6),
            sent_bytes=exchange.sent_bytes,
            **({"error": exchange.error} if failed else {}),
            **({"message": exchange.message} if failed and exchange.message is not None else {}),
            **exchange.notes,
        )

    def failure(self, exchange: Exchange, error: BaseException, details: str | None = None) -> None:
        """Log a fault of the server with everything known about it."""
        trace = "".join(traceback.format_exception(error))
        self.event("failure", request_id=exchange.request_id, traceback=trace, details=details)

    def event(self, event: str, **fields: object) -> None:
        """Log an event: a request's end, the engine's start, loss and restart, the server's end."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        stream = self._stream or sys.stderr
        # The server continues if nobody reads the log any more, or its disk is full.
        with contextlib.suppress(OSError):
            stream.write(json.dumps({"time": now, "event": event, **fields}) + "\n")
            stream.flush()


class LibraryMessages(logging.Handler):
    """Writes libraries' messages as lines of the log; add it to their loggers."""

    def __init__(self, log: AccessLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else None
        self._log.event("message", logger=record.name, message=record.getMessage().strip(), traceback=trace)
