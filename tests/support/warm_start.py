"""`omni` processes whose fork server is a fork of one that has done the slow imports: most of a short command's time.

The command is a Python of its own: its arguments, environment, files, signals and exit code are real. Next to it, and
as its child, waits a fork of `support.answers.forked`. When the command starts its fork server, this process runs the
code that a new Python would run, with the same files, environment and parent; the imports in it find their modules
loaded. When a benchmark starts a variant, this process starts it with another one that waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from support.answers import forked
from support.reaper import NO_RUN, RUN

# In the environment of a Python: the socket to the process that waits, and its id.
VARIABLE = "OMNI_TEST_WARM"
# A script that changes modules of ours in each Python of a run, before others import from them.
PLANTED = "OMNI_TEST_PLANTED"
_PRELOAD = "omni_cli.engine.process.preload_"
# Descriptors are received above those that the code names.
_ASIDE = 1000
_CLONE_NEWNS, _CLONE_PARENT = 0x00020000, 0x00008000
_CLONE = {"x86_64": 56, "aarch64": 220}

# For a command's `sitecustomize`.
START = f'''
def start_warm(descriptor, pid):
    """Have the first fork server, and variants of a benchmark, started by the process that waits."""
    import _posixsubprocess, json, socket

    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    usual = _posixsubprocess.fork_exec

    def ask(descriptors, **message):
        socket.send_fds(channel, [json.dumps(message).encode()], descriptors)

    def of_libraries(environment):
        """What may change what is imported, and what that reads then."""
        folders = set(environment.get("PYTHONPATH", "").split(os.pathsep))
        names = environment.keys() - {{"PYTHONPATH"}}
        return folders, {{name: environment[name] for name in names}}

    def fork_exec(arguments, programs, close, kept, cwd, environment, *others):
        words = [os.fsdecode(word) for word in arguments]
        if channel.fileno() != -1 and words[-1].startswith("from multiprocessing.forkserver import main"):
            umask = os.umask(0o077)
            os.umask(umask)
            request = dict(code=words[-1], places=list(kept), environment=dict(os.environ), folder=os.getcwd())
            request |= dict(umask=umask)
            ask(list(kept), request=request, path=sys.path, executable=sys.executable)
            channel.close()
            note("python")
            return pid
        if channel.fileno() != -1 and words[-1] == "omni_cli.measure.bench.variant_worker":
            wanted = dict(os.fsdecode(entry).split("=", 1) for entry in environment)
            if of_libraries(wanted) == of_libraries(os.environ):
                ends = [others[index] if others[index] != -1 else number for number, index in enumerate((0, 3, 5))]
                ask(ends, arguments=words, environment=wanted)
                return int(channel.recv(100))
        return usual(arguments, programs, close, kept, cwd, environment, *others)

    _posixsubprocess.fork_exec = fork_exec

if {VARIABLE!r} in os.environ:
    start_warm(*map(int, os.environ.pop({VARIABLE!r}).split()))
if {PLANTED!r} in os.environ:
    import runpy
    runpy.run_path(os.environ[{PLANTED!r}])
'''


class WarmPopen(subprocess.Popen[str]):
    """A child of the fork server of `forked`, not of this process; it leads a session."""

    def __init__(self, arguments: Sequence[str], shared_memory: Path | None, **options: Any) -> None:
        self._shared_memory = shared_memory
        super().__init__(arguments, **options)

    def _execute_child(self, arguments: Sequence[str], *others: Any) -> None:
        folder, environment = others[4], others[5]
        pipes = others[9:15]
        ends = [Connection(os.dup(end), writable=False) for end in (pipes[0], pipes[3], pipes[5])]
        task = (list(arguments), str(folder), dict(environment), self._shared_memory, ends)
        self._process = forked().Process(target=_run, args=task, daemon=True)
        self._process.start()
        for end in ends:
            end.close()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of subprocess.Popen

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


def _run(
    arguments: list[str],
    folder: str,
    environment: Mapping[str, str],
    shared_memory: Path | None,
    ends: list[Connection],
) -> None:
    if shared_memory is not None:
        _mount(shared_memory)
    os.chdir(folder)
    _become(arguments, environment, [end.fileno() for end in ends])


def _become(arguments: list[str], environment: Mapping[str, str], ends: Sequence[int]) -> NoReturn:
    """Become a Python in a session of its own, after a fork that waits; `ends` are its stdin, stdout and stderr."""
    os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end, number)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()  # stop signals are blocked, as in any fork server
    if pid == 0:
        _close_others(here.fileno())
        _wait(here, environment[RUN])
    _close_others(there.fileno())
    there.set_inheritable(True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execve(arguments[0], arguments, {**environment, VARIABLE: f"{there.fileno()} {pid}"})


def _close_others(kept: int) -> None:
    """Close descriptors that came with the fork: pipes and sockets, of which somebody may await the end."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        if number <= 2 or number == kept:
            continue
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            if str(entry.readlink()).startswith(("pipe:", "socket:")):
                os.close(number)


def _mount(shared_memory: Path) -> None:
    """Put a private folder at /dev/shm, as `unshare` does it."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", str(shared_memory), "/dev/shm"], check=True)


def _wait(channel: socket.socket, mark: str) -> NoReturn:
    """Wait for what the Python that this process is a child of asks for; end with it, or as its fork server."""
    _show(mark)
    while True:
        content, received, _, _ = socket.recv_fds(channel, 2**20, 8)
        if not content:
            os._exit(0)
        message = json.loads(content)
        if "request" in message:
            channel.close()
            with contextlib.suppress(SystemExit):  # its usual end
                _become_fork_server(message, received)
            os._exit(0)
        channel.send(str(_start_beside(message, received)).encode())


def _start_beside(message: Mapping[str, Any], ends: Sequence[int]) -> int:
    """Start a Python whose parent is this process's parent; return its id."""
    pid: int = ctypes.PyDLL(None).syscall(_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _become(message["arguments"], message["environment"], ends)
    for end in ends:
        os.close(end)
    return pid


def _become_fork_server(message: Mapping[str, Any], received: list[int]) -> None:
    """Run the code of a command's fork server in this fork, with the descriptors `received` for its places."""
    request = message["request"]
    environment = request["environment"]
    tempfile.tempdir = None
    is_changed = PLANTED in environment or message["executable"] != sys.executable
    sys.path[:], sys.executable = message["path"], message["executable"]
    if is_changed:
        for name in [name for name in sys.modules if name.startswith("omni_cli.") and "compat" not in name]:
            del sys.modules[name]
    if PLANTED in environment:
        os.environ.update(environment)
        runpy.run_path(environment[PLANTED])
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for descriptor in received]
    for descriptor, place in zip(aside, request["places"], strict=True):
        os.dup2(descriptor, place)
    for descriptor in (*aside, *(set(received) - set(request["places"]))):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    # These act on their process: each runs again where it is imported.
    for name in [name for name in sys.modules if name.startswith(_PRELOAD)]:
        del sys.modules[name]
    exec(request["code"], {"__name__": "__main__"})


def _show(mark: str) -> None:
    """Let `/proc` show the run's mark in the environment that this process started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    environment = ctypes.string_at(start, end - start)
    found = re.search(rb"(?:^|\0)" + RUN.encode() + rb"=(?=[^\0]{32}\0)", environment)
    assert found is not None and len(mark) == len(NO_RUN)
    ctypes.memmove(start + found.end(), mark.encode(), len(mark))
