"""Write the stacks of all threads to a file on a signal, even if the process hangs."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

_VARIABLE = "OMNI_STACKS_FILE"
SIGNAL = signal.SIGUSR1


def write_stacks_on_signal(path: str | None = None) -> None:
    """Make `SIGNAL` append this process's stacks to the file at `path`, and pass the path to child processes.

    A child calls this without a path; it does nothing if no parent has set one. The handler is C code that takes no
    lock of the interpreter, so it also shows a thread that hangs in a library.
    """
    path = os.environ.get(_VARIABLE) if path is None else path
    if path is None:
        return
    os.environ[_VARIABLE] = path
    file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the process lives
    faulthandler.register(SIGNAL, file=file, all_threads=True)
