"""Messages of libraries in the log: those that repeat themselves are counted."""

from __future__ import annotations

import io
import json
import logging

from omni_cli.serve.access_log import AccessLog, LibraryMessages


def test_a_message_that_repeats_itself_is_written_every_ten_seconds() -> None:
    stream = io.StringIO()
    messages = LibraryMessages(AccessLog(stream))
    for created in (0.0, 0.1, 9.9, 10.1, 10.2):
        for text in ("out of files\nsocket 7", "something else"):
            record = logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, None)
            record.created = created
            messages.emit(record)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"][:3], line.get("omitted")) for line in lines] == [
        *(("out", None), ("som", None)),
        *(("out", 2), ("som", 2)),
    ]
