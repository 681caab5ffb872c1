"""Keep Ray's own messages off this command's streams."""

from __future__ import annotations

import io
import logging
import os
import sys

# Read by Ray on import. Without them, its processes' output would go to stdout, where results belong.
_ENVIRONMENT = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
_STDERR = 2


class QuietRay:
    """Silences Ray on stdout, and on stderr unless `verbose`.

    Descriptor 2 is redirected to the null device until `end`, because Ray's C++ code writes there and has no setting
    for it. Python's stderr moves to another descriptor. Create this before anything keeps `sys.stderr`.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._kept: int | None = None
        self._stderr = sys.stderr
        os.environ.update(_ENVIRONMENT)
        if not verbose and _is_descriptor(sys.stderr):
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        sys.stderr.flush()
        self._kept = os.dup(_STDERR)
        os.set_inheritable(self._kept, False)
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        sys.stderr = open(self._kept, "w", buffering=1, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDERR)
        os.close(nowhere)

    def silence_loggers(self) -> None:
        """Silence the loggers as well, which are set up when Ray is imported."""
        if not self._verbose:
            logging.getLogger("ray").setLevel(logging.CRITICAL)
            # Set up repeatedly, so it gets a filter.
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
    """True if a stream writes to descriptor 2; one installed by a test may not."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == _STDERR
    except (OSError, ValueError):
        return False
