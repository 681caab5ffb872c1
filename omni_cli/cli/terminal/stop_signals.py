"""Ctrl-C and SIGTERM while an engine runs: the first asks for an orderly stop, the second kills at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import psutil

from omni_cli.cli.terminal import interrupts
from omni_cli.core.errors import DeadlineError, ExitCode, OmniError

T = TypeVar("T")

# `timeout` and some shells send a signal to the process and to its group, which counts as one.
_SAME_SIGNAL_S = 0.5
_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupted(OmniError):
    """The run was asked to stop, and has stopped cleanly."""

    exit_code = ExitCode.INTERRUPTED


async def run_until_stopped(
    work: Coroutine[Any, Any, T], timeout_s: float | None, waited_s: float = 0.0
) -> tuple[asyncio.Task[T], OmniError | None]:
    """Run `work`, or cancel it at the first signal or after `timeout_s`; the second value is the reason.

    `waited_s` of the time limit are over already. The task is done in any case, including its clean-up, which a second
    signal may kill.
    """
    with stop_signals() as requested:
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, requested}
        left_s = None if timeout_s is None else max(timeout_s - waited_s, 0.0)
        await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task, None
        stopped: OmniError = (
            Interrupted("interrupted")
            if requested.done()
            else DeadlineError(f"the run did not finish within {timeout_s:g} s", hint="raise `--timeout`")
        )
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # or asyncio would report a failure while cleaning up as forgotten
    return task, stopped


@contextmanager
def stop_signals() -> Iterator[asyncio.Future[signal.Signals]]:
    """Return a future that the first signal completes; call it in the main thread, within its event loop.

    A second signal kills every child process and this one, without any clean-up. A signal that was ignored
    before (`nohup`, a background job) stays ignored.
    """
    interrupts.check()  # a signal that a library swallowed while it was imported
    loop = asyncio.get_running_loop()
    requested: asyncio.Future[signal.Signals] = loop.create_future()
    first_at: float | None = None

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal first_at
        now = time.monotonic()
        if first_at is None:
            first_at = now
            loop.call_soon_threadsafe(_fulfil, requested, signal.Signals(number))
        elif now - first_at > _SAME_SIGNAL_S:
            kill_now()

    previous = {number: signal.getsignal(number) for number in interrupts.STOP_SIGNALS}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        requested.cancel()


def kill_now() -> None:
    """Kill all descendants of this process, then this process; does not return."""
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)
    os._exit(ExitCode.INTERRUPTED)


def _fulfil(requested: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if not requested.done():
        requested.set_result(number)
