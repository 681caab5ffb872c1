"""The process that stages are forked from, after it has done the slow imports once for all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from omni_cli.engine.process.process_group import stop_signals_blocked
from omni_cli.errors import OmniError
from omni_cli.machine import count_usable_cores, read_cpu_quota
from omni_cli.temporary_folder import temporary_folder

# Killed stages leave semaphores of their libraries behind. Python's resource tracker, a separate process, removes them
# and would warn the user; its warning filters are set here.
_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"
# The longest path that follows the temporary folder's.
_SOCKET = "/omni-01234567/listener-01234567"
_DESCRIPTORS = "/proc/self/fd"
NO_MAIN_GUARD = "start the engine below `if __name__ == '__main__':`, because its processes import the program"
"""The hint for a process that ended with code 1 before our code ran: multiprocessing imports the main module first."""


class ForkServer:
    """A handle of the interpreter's one fork server, which ends with its last handle."""

    _users: ClassVar[set[int]] = set()
    _spare: ClassVar[ForkServer | None] = None

    def __init__(self, backends: Iterable[str], *, verbose: bool = False) -> None:
        """Choose the imports that stages on these backends need; `verbose` forwards their output to stderr."""
        parts = ["verbose" if verbose else "quiet", *sorted(backends, reverse=True)]
        self._preload = [f"omni_cli.engine.process.preload_{part}" for part in parts]

    def start(self) -> ForkServerContext:
        """Start the imports, unless they have started, and return the context to start processes with."""
        if ForkServer._spare is not None and ForkServer._spare._preload != self._preload:
            ForkServer.end_spare()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self._preload)
        if _TRACKER_FILTER not in sys.warnoptions:
            sys.warnoptions.append(_TRACKER_FILTER)
        # By default, OpenMP's threads spin while they wait for each other. When stages share cores, a spinning thread
        # can block the thread that it waits for: 30 s instead of 1 s were measured. Short enough not to slow down a
        # chain whose stages share two cores, 1000 turns save a lone request's token2wav a fifth of its time.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ["OMP_WAIT_POLICY"] = "passive"
            os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        # By default, libraries use a thread per core of the affinity mask, which a container's quota then stops.
        if read_cpu_quota() is not None:
            os.environ.setdefault("OMP_NUM_THREADS", str(count_usable_cores()))
        # The imports ask torch whether there is a CUDA device. By default torch then initialises CUDA, which processes
        # forked later cannot use. With this setting it asks the driver's library.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        resource_tracker.ensure_running()  # unblocks signals when it is done, so not within
        with stop_signals_blocked():
            _ensure_running()
        self._users.add(id(self))
        return context

    def start_spare(self) -> ForkServerContext:
        """Start as `start` does, and keep the server until `end_spare` or the start of one with other imports."""
        context = self.start()
        if ForkServer._spare is None:
            ForkServer._spare = self
        else:
            self.stop()
        return context

    @classmethod
    def end_spare(cls) -> None:
        """Release the handle that `start_spare` keeps, if there is one."""
        spare, cls._spare = cls._spare, None
        if spare is not None:
            spare.stop()

    def stop(self) -> None:
        """Release the handle; forked processes continue. Idempotent."""
        if id(self) not in self._users:
            return
        self._users.remove(id(self))
        server: Any = forkserver._forkserver  # multiprocessing has no call to end it
        if self._users or server._forkserver_pid is None:
            return
        # Otherwise it would end only after its imports, which are no longer needed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)
        _forget_socket(server)
        # Without multiprocessing's own clean-up, the next handle would use the killed server.
        with contextlib.suppress(ChildProcessError):
            server._stop()


def start_process(process: BaseProcess) -> None:
    """Start a process in the fork server, once its imports are done. Raises `OmniError` if it has ended."""
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        raise OmniError(
            "the process that does the imports for all stages ended unexpectedly",
            hint="check that enough memory is free; `-v` shows its output",
        ) from error


def _ensure_running() -> None:
    """Start multiprocessing's fork server, unless it runs, so that no file of its socket outlives a killed command.

    The socket is connected to by a descriptor of it, and its folder removed.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        running = os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        if running:
            return
        _forget_socket(server)
    own = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="omni-", dir=temporary_folder(len(_SOCKET))) as own["tempdir"]:
        try:
            server.ensure_running()
            descriptor = os.open(server._forkserver_address, os.O_PATH)
        finally:
            del own["tempdir"]
    server._forkserver_address = f"{_DESCRIPTORS}/{descriptor}"


def _forget_socket(server: Any) -> None:
    folder, _, descriptor = server._forkserver_address.rpartition("/")
    if folder == _DESCRIPTORS:  # else multiprocessing has started another server itself
        os.close(int(descriptor))
        server._forkserver_address = "\0"  # an address without a file to remove
