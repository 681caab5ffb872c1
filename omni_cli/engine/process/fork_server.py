"""The process that stages are forked from, after it has done the slow imports once for all of them.

What its children have in common is here as well: a process group, a log, and a function that one of them calls.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from omni_cli.core.errors import OmniError
from omni_cli.core.files import temporary_folder
from omni_cli.core.machine import count_usable_cores, read_cpu_quota
from omni_cli.stage.failures import as_failure

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


# Killed stages leave semaphores of their libraries behind. Python's resource tracker, a separate process, removes them
# and would warn the user; its warning filters are set here.
_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"
# The longest path that follows the temporary folder's.
_SOCKET = "/omni-01234567/listener-01234567"
_TAIL_BYTES = 64 * 1024
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
        """Start as `start` does, and keep the server until `end_spare`, exit or the start of one with other imports."""
        context = self.start()
        if ForkServer._spare is None:
            ForkServer._spare = self
            atexit.register(ForkServer.end_spare)
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


class ChildCall:
    """A call of a function in a process of the fork server, so that the command's never imports torch."""

    def __init__(self, context: ForkServerContext, function: Callable[..., object], *arguments: object) -> None:
        """Prepare the call; the function, its arguments and its result are pickled."""
        self._ours, self._theirs = context.Pipe()
        target, name = _answer_call, f"omni-{function.__name__}"
        self._process = context.Process(target=target, args=(function, arguments, self._theirs), name=name)
        self._is_cancelled = False

    def run(self) -> Any:
        """Wait for the result; a `Failure` if the function raised. Raises `OmniError`, and `EOFError` if it ended."""
        with self._ours:
            with self._theirs:
                start_process(self._process)
            if self._is_cancelled:
                self._process.kill()
            try:
                answer = self._ours.recv()
            except (EOFError, OSError):
                self._process.join()
                raise EOFError from None
        self._process.join()
        return answer

    @property
    def exit_code(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def cancel(self) -> None:
        """End the process, from another thread: `run` raises."""
        self._is_cancelled = True
        if self._process.pid is not None:
            self._process.kill()


def _answer_call(function: Callable[..., object], arguments: tuple[object, ...], connection: Connection) -> None:
    """Entry point of the process."""
    become_group_leader()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    threading.Thread(target=_end_with_the_command, args=(connection,), daemon=True).start()
    try:
        answer = function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a library raises must reach the user
        answer = as_failure(error)
    connection.send(answer)


def _end_with_the_command(connection: Connection) -> None:
    """End this process when the command ends, even if it is killed: its pipe, which carries no data, is then closed."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


class StageLog:
    """Both ends of the log; as an argument of a `multiprocessing` process it arrives open."""

    def __init__(self, *, passed_on: bool = False) -> None:
        """`passed_on` forwards it to this process's stderr immediately. Raises `OmniError` if no file can be made."""
        self._passed_on = passed_on
        if passed_on:
            self._descriptor = os.dup(2)
            return
        try:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise OmniError(
                f"cannot create a temporary file: {error.strerror or error}",
                hint="set TMPDIR to a folder with space",
            ) from error

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def tail(self, num_lines: int) -> str:
        """The last lines, none if they were forwarded; does not move the other process's write position."""
        if self._passed_on:
            return ""
        start = max(0, os.fstat(self._descriptor).st_size - _TAIL_BYTES)
        text = os.pread(self._descriptor, _TAIL_BYTES, start).decode(errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])

    def __reduce__(self) -> tuple[object, ...]:
        return _from_inherited, (reduction.DupFd(self._descriptor), self._passed_on)


def _from_inherited(inherited: Any, passed_on: bool) -> StageLog:
    log = StageLog.__new__(StageLog)
    log._passed_on = passed_on
    log._descriptor = inherited.detach()
    return log


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
