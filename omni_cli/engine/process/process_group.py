"""Process groups and stop signals of processes that a command starts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

# Sent to a whole process group by a terminal, `timeout` or a service manager. Only the command handles them.
_GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block these signals for processes started within, from their first instruction on; here they stay pending."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def become_group_leader() -> None:
    """Give a process from the fork server its own group, which can be killed as a whole.

    It then gets no Ctrl-C, which goes to the command only, and SIGTERM has its usual effect again.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)
