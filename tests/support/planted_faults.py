"""A fault in a known place, for tests of what is left afterwards: runs first in each Python of a command.

`PLANTED_FAULT` is `KIND@RANGE@STAGE`, such as `kill@vae decode@image`: the first time that the stage's process
enters the range. `PLANTED_WHEN` is a file that must exist by then; the range waits a little for it.

`raise` is an error that nobody expects, `memory` memory that is used up, `full` a full disk, `kill` SIGKILL as from the
system when memory runs out, `exit` a library that ends the process, `hang` a call that never returns.
"""

import contextlib
import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

from omni_cli.backends.execution import ranges

_kind, _place, _stage = os.environ["PLANTED_FAULT"].split("@")
_when = os.environ.get("PLANTED_WHEN")
_mark = ranges.mark
_done: list[Any] = []
_waited: list[Any] = []
# Entries of the range that do not wait: what brings the moment may need some of them. Less than the time limit of a
# hung stage.
_GOES_ON = 2
_WAIT_S = 1.5


class DeviceError(RuntimeError):
    """A subclass, as torch's are: a plain one, before the first step, is of the request's values."""


def never_returns():
    while True:
        time.sleep(3600)


def _fault():
    match _kind:
        case "raise":
            raise DeviceError("planted")
        case "memory":
            raise MemoryError("planted: not enough memory")
        case "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "hang":
            never_returns()


def _is_there(when):
    """Return True if the trigger has occurred; it may be slower than the stage, which must not be done before."""
    _waited.append(when)
    deadline = time.monotonic() + (_WAIT_S if len(_waited) > _GOES_ON else 0)
    while not when.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return when.exists()


@contextlib.contextmanager
def _warm_up(name):
    """Plant nothing: these are not the user's requests."""
    _done.append(name)
    with _mark(name):
        yield
    _done.remove(name)


def _planted(name, number=None):
    if name == "warm-up requests":
        return _warm_up(name)
    called = name if number is None else f"{name} {number}"
    here = called == _place and multiprocessing.current_process().name == f"omni-{_stage}" and not _done
    if here and (_when is None or _is_there(Path(_when))):
        _done.append(called)
        _fault()
    return _mark(name, number)


# Before anybody imports it by name.
ranges.mark = _planted
