"""Server-sent events."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventParser:
    """Parser of server-sent events: splits a stream of bytes, in chunks of any size, and returns the data of events."""

    def __init__(self) -> None:
        self.rest = b""  # after the last line
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that this chunk completes."""
        if not chunk:
            return []
        after_cr, self._after_cr = self._after_cr, chunk.endswith(b"\r")
        if after_cr:
            # The second half of a line end that was split between chunks.
            chunk = chunk.removeprefix(b"\n")
        *lines, self.rest = _LINE_END.split(self.rest + chunk)
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
