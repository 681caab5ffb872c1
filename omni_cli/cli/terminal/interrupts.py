"""Ctrl-C, SIGTERM and SIGHUP during a command: one `KeyboardInterrupt`, never lost, never a traceback.

While an engine runs, `stop_signals` takes over and ends it cleanly.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Long enough for the callback to end.
_AGAIN_S = 0.02

_num_seen = False


def install() -> None:
    """Make the first signal raise `KeyboardInterrupt`; ignored signals (`nohup`) stay ignored."""
    _set_all(_interrupt)
    sys.unraisablehook = _unraisable


def ignore() -> None:
    """Ignore interrupts after the command has ended: Python's shutdown handles them badly."""
    _set_all(signal.SIG_IGN)


def was_interrupted() -> bool:
    """True after a signal. Libraries may have replaced the exception by their own."""
    return _num_seen


def check() -> None:
    """Raise again an interrupt that a library swallowed, for example while it was imported.

    Checked before an engine starts, before data go to stdout and at the end of every command.
    """
    if was_interrupted():
        raise KeyboardInterrupt


def _set_all(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _num_seen
    _num_seen = True
    raise KeyboardInterrupt


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Send the signal again: an interrupt in a finalizer or an import callback cannot be raised there, nor here."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)
