"""Ray's own messages, away from this command's streams."""

from __future__ import annotations

import io
import logging
import os
import sys

# Read by Ray when it is imported: what its processes say would go to stdout, where results belong.
_ENVIRONMENT = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
_STDERR = 2


class QuietRay:
    """From `begin` to `end`, descriptor 2 leads nowhere: Ray's C++ writes there and cannot be told not to.

    Python's stderr keeps its place on a descriptor of its own. Begin before anything keeps `sys.stderr`.
    """

    def __init__(self) -> None:
        self._kept: int | None = None
        self._stderr = sys.stderr
        self.is_begun = False

    def begin(self) -> None:
        os.environ.update(_ENVIRONMENT)
        self.is_begun = True
        if not _is_descriptor(sys.stderr):
            return
        sys.stderr.flush()
        self._kept = os.dup(_STDERR)
        os.set_inheritable(self._kept, False)
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        sys.stderr = open(self._kept, "w", buffering=1, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
        os.close(nowhere)

    def hush(self) -> None:
        """The loggers too, which are set up when Ray is imported."""
        if self.is_begun:
            logging.getLogger("ray").setLevel(logging.CRITICAL)
            # This one is set up again and again.
            logging.getLogger("ray.serve").addFilter(_nothing)

    def end(self) -> None:
        """Idempotent."""
        if self._kept is None:
            return
        sys.stderr.flush()
        sys.stderr = self._stderr
        os.dup2(self._kept, _STDERR)
        os.close(self._kept)
        self._kept = None


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def _is_descriptor(stream: object) -> bool:
    """Whether it writes to descriptor 2; one that a test has put there may not."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == _STDERR
    except (OSError, ValueError):
        return False
