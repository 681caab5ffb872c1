"""Output of a stage's process and its libraries, kept in an unnamed file or forwarded to stderr."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import reduction
from typing import Any

from omni_cli.errors import OmniError

_TAIL_BYTES = 64 * 1024


class StageLog:
    """Both ends of the log; as an argument of a `multiprocessing` process it arrives open."""

    def __init__(self, *, passed_on: bool = False) -> None:
        """`passed_on` forwards it to this process's stderr immediately. Raises `OmniError` if no file can be made."""
        self._passed_on = passed_on
        if passed_on:
            self._descriptor = os.dup(2)
            return
        try:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise OmniError(
                f"cannot create a temporary file: {error.strerror or error}",
                hint="set TMPDIR to a folder with space",
            ) from error

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def tail(self, num_lines: int) -> str:
        """The last lines, none if they were forwarded; does not move the other process's write position."""
        if self._passed_on:
            return ""
        start = max(0, os.fstat(self._descriptor).st_size - _TAIL_BYTES)
        text = os.pread(self._descriptor, _TAIL_BYTES, start).decode(errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])

    def __reduce__(self) -> tuple[object, ...]:
        return _from_inherited, (reduction.DupFd(self._descriptor), self._passed_on)


def _from_inherited(inherited: Any, passed_on: bool) -> StageLog:
    log = StageLog.__new__(StageLog)
    log._passed_on = passed_on
    log._descriptor = inherited.detach()
    return log
