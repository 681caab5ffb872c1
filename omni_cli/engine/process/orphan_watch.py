"""End a process whose parent has ended, even while it is busy with imports."""

from __future__ import annotations

import os
import threading

_INTERVAL_S = 0.2


class OrphanWatch:
    """A thread that ends this process as soon as its parent has ended; `stop` it before anything is forked."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="omni-orphan-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            if os.getppid() != self._parent:
                os._exit(1)
