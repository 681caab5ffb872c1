"""Ends what a test runner started once the runner is gone, however it ended: `python reaper.py PID MARK`.

A runner that is killed with SIGKILL runs no fixture's end. Whatever it started has MARK in its environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

VARIABLE = "OMNI_TEST_SESSION"
# Marks the processes of one run of a command; NO_RUN is room for a mark, which forks of this process fill in.
RUN, NO_RUN = "OMNI_TEST_RUN", "0" * 32
_TRIES = 50


def marked(variable: str, mark: str) -> list[int]:
    """Find living processes whose environment has the marker; zombies have none."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # ended meanwhile, or not ours
    return found


def _reap(runner: int, mark: str) -> None:
    with contextlib.suppress(ProcessLookupError):  # already gone
        select.select([os.pidfd_open(runner)], [], [])
    # A process may start another while it is ended.
    for _ in range(_TRIES):
        pids = marked(VARIABLE, mark)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    _reap(int(sys.argv[1]), sys.argv[2])
