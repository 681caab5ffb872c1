"""Write the stacks of all threads to a file on a signal, even if the process hangs."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

SIGNAL = signal.SIGUSR1


def stacks_in(scratch: str | Path) -> Path:
    """Return the file in a stage's folder for temporary files to which its processes write their stacks."""
    return Path(scratch, "stacks.txt")


def write_stacks_on_signal(path: Path) -> None:
    """Make `SIGNAL` append this process's stacks to the file at `path`. Raises `OSError`.

    The handler is C code that takes no lock of the interpreter, so it also shows a thread that hangs in a library.
    """
    file = path.open("ab", buffering=0)  # as long as the process lives
    faulthandler.register(SIGNAL, file=file, all_threads=True)
