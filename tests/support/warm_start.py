"""`omni` processes whose fork server is a fork of one that has done the slow imports: most of a short command's time.

The command is a Python of its own: its arguments, environment, files, signals and exit code are real. Next to it, and
as its child, waits a fork of `support.answers.forked`. When the command starts its fork server, this process runs the
code that a new Python would run, with the same files, environment and parent; the imports in it find their modules
loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.answers import forked
from support.reaper import NO_RUN, RUN

# In the environment of a command: the socket to the process that waits, and its id.
VARIABLE = "OMNI_TEST_WARM"
_CLONE_NEWNS = 0x00020000

# For a command's `sitecustomize`: starts its fork server from the process that waits, the first time.
START = f"""
def start_warm(descriptor, pid):
    import _posixsubprocess, array, json, socket

    waiting = [socket.socket(fileno=descriptor)]
    waiting[0].set_inheritable(False)
    usual = _posixsubprocess.fork_exec

    def fork_exec(arguments, programs, close, descriptors, *others):
        code = os.fsdecode(arguments[-1])
        if not waiting or not code.startswith("from multiprocessing.forkserver import main"):
            return usual(arguments, programs, close, descriptors, *others)
        with waiting.pop() as channel:
            environment = dict(os.environ)
            message = dict(code=code, environment=environment, cwd=os.getcwd(), descriptors=list(descriptors))
            socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors))
        note("python")
        return pid

    _posixsubprocess.fork_exec = fork_exec

if {VARIABLE!r} in os.environ:
    start_warm(*map(int, os.environ.pop({VARIABLE!r}).split()))
"""


class WarmPopen(subprocess.Popen):
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
        self._close_pipe_fds(*pipes)

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
    """Become the command, after a fork that waits to become its fork server."""
    os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
    if shared_memory is not None:
        _mount(shared_memory)
    os.chdir(folder)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()  # stop signals are blocked, as in any fork server
    if pid == 0:
        _close_others(here.fileno())
        _serve(here, environment[RUN])
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


def _serve(channel: socket.socket, mark: str) -> None:
    """Wait for the command's own request for a fork server, and be it; end with a command that starts none."""
    _show(mark)
    content, received, _, _ = socket.recv_fds(channel, 2**20, 8)
    channel.close()
    if content:
        with contextlib.suppress(SystemExit):  # its usual end
            _become_fork_server(json.loads(content), received)
    os._exit(0)


def _become_fork_server(message: Mapping[str, Any], received: list[int]) -> None:
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, 1000) for number in received]
    for number, wanted in zip(aside, message["descriptors"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["cwd"])
    tempfile.tempdir = None
    for name in [name for name in sys.modules if name.startswith("omni_cli.engine.process.preload_")]:
        del sys.modules[name]
    exec(message["code"], {"__name__": "__main__"})


def _show(mark: str) -> None:
    """Let `/proc` show the run's mark in the environment that this process started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    environment = ctypes.string_at(start, end - start)
    found = re.search(rb"(?:^|\0)" + RUN.encode() + rb"=(?=[^\0]{32}\0)", environment)
    assert found is not None and len(mark) == len(NO_RUN)
    ctypes.memmove(start + found.end(), mark.encode(), len(mark))
