"""One line of JSON on stderr per request, and per server event."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
import traceback
from typing import TextIO

from omni_cli.serve.exchange import Exchange


class AccessLog:
    """Never logs bodies, queries, headers or keys."""

    def __init__(self, stream: TextIO | None = None, *, only_failures: bool = False) -> None:
        self._stream = stream
        self._only_failures = only_failures

    def request(self, exchange: Exchange) -> None:
        """Log a request that has ended."""
        failed = exchange.error is not None
        if self._only_failures and not failed:
            return
        self._write(
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

    def event(self, event: str, **fields: object) -> None:
        """Log an event: the engine's start, loss and restart, the server's end."""
        self._write(event, **fields)

    def failure(self, exchange: Exchange, error: BaseException, details: str | None = None) -> None:
        """Log a fault of the server with everything known about it."""
        trace = "".join(traceback.format_exception(error))
        self._write("failure", request_id=exchange.request_id, traceback=trace, details=details)

    def _write(self, event: str, **fields: object) -> None:
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
