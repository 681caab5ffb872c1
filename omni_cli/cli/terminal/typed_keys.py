"""Keys typed while a live display is shown: the terminal does not echo them into it, and the shell gets them later."""

from __future__ import annotations

import os
import termios
from contextlib import suppress
from typing import Any, TextIO

# The terminal whose echo is off, with its settings before.
_silenced: tuple[int, list[Any]] | None = None
_LOCAL_FLAGS = 3


def hide(stream: TextIO) -> None:
    """Stop the echo of the terminal that `stream` is, if it is one and this process is in its foreground."""
    global _silenced
    # Such a stream has no descriptor, or is no terminal, or the terminal has gone.
    with suppress(OSError, ValueError, termios.error):
        descriptor = stream.fileno()
        before = termios.tcgetattr(descriptor)
        if _silenced is None and _may_change(descriptor):
            silent = [*before]
            silent[_LOCAL_FLAGS] &= ~termios.ECHO
            _silenced = descriptor, before
            termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)


def show() -> None:
    """Give the terminal its settings back, if `hide` changed them."""
    global _silenced
    if _silenced is not None:
        (descriptor, before), _silenced = _silenced, None
        with suppress(OSError, termios.error):
            if _may_change(descriptor):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _may_change(descriptor: int) -> bool:
    """False in the background, where changing the terminal would stop this process."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not the terminal that controls this process
        return True
