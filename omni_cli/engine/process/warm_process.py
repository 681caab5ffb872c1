"""A process that outlives its command with the slow imports done: later commands fork their fork server from it.

It serves commands of the same user, with the same interpreter, packages, backends, limits and environment, one socket
for each such combination. What a command sends there is what multiprocessing would start its fork server with: the
code, its descriptors, and the environment. A fork of the warm process runs it, and ends when the command does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import multiprocessing.util
import os
import resource
import select
import socket
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import omni_cli
from omni_cli.engine.process.process_group import stop_signals_blocked
from omni_cli.engine.process.slow_imports import FAMILY_MODULES
from omni_cli.errors import OmniError
from omni_cli.temporary_folder import temporary_folder

# What differs from one terminal or command to the next, and no library reads while it is imported. A fork imports the
# family's modules that it lacks.
_IGNORED = frozenset(
    {"_", "PWD", "OLDPWD", "SHLVL", "TERM", "TERM_SESSION_ID", "COLORTERM", "COLUMNS", "LINES", "WINDOWID"}
    | {"TMUX", "TMUX_PANE", "STY", "SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID"}
    | {FAMILY_MODULES, "OMNI_KEEP_WARM"}
)
_SOCKET_ROOM = len("/omni-1234567890/0123456789abcdef0123")
_PRELOAD = "omni_cli.engine.process.preload_"
# Descriptors are received above those that the code names.
_ASIDE = 1000


@dataclass(frozen=True)
class ForkRequest:
    """The code of a fork server, and what it runs in; `places` are the numbers of its descriptors."""

    code: str
    places: list[int]
    environment: dict[str, str]
    folder: str
    umask: int
    keep_s: float


@contextlib.contextmanager
def warm_process(preload: Sequence[str], keep_s: float) -> Iterator[None]:
    """Within this context multiprocessing's fork server is a fork of a process that stays for `keep_s` afterwards.

    That process is started if there is none, with the imports of `preload`. Raises `OmniError` if the folder of its
    socket is not the user's alone.
    """

    def ask(_: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
        """Replace `multiprocessing.util.spawnv_passfds`, without a process id: the fork is no child of this process."""
        places = [*filter(_is_open, (1, 2)), *descriptors]
        request = ForkRequest(arguments[-1], places, dict(os.environ), str(Path.cwd()), _umask(), keep_s)
        path = _folder() / fingerprint(preload)
        with _locked(path), _connected(path, preload) as channel:
            socket.send_fds(channel, [b"."], places)
            channel.sendall(json.dumps(asdict(request)).encode())

    with patch.object(multiprocessing.util, "spawnv_passfds", ask):
        yield


def can_keep_warm() -> bool:
    """Tell whether a process can stay here, without asking for one: on Linux, with a folder for its socket."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        return os.access(_folder(), os.W_OK)
    except (OmniError, OSError):
        return False


def _folder() -> Path:
    folder = Path(temporary_folder(_SOCKET_ROOM)) / f"omni-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OmniError(f"{folder} is not a folder that only you can enter", hint="remove it, or set TMPDIR")
    return folder


def fingerprint(preload: Sequence[str]) -> str:
    """Return a name for what forks of a warm process must share with a fork server that this process would start."""
    folders = [Path(entry) for entry in sys.path if next(Path(entry).glob("*.dist-info"), None) is not None]
    sources = sorted(Path(omni_cli.__file__).parent.rglob("*.py"))
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    parts = [
        sys.version, sys.executable, sys.path, sys.flags, list(preload), limits, os.getgroups(),
        sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0),
        # Another installed package changes its folder's time, and another version of ours a file's.
        [(str(path), path.stat().st_mtime_ns) for path in (*folders, *sources)],
        sorted((name, value) for name, value in os.environ.items() if name not in _IGNORED),
    ]  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _umask() -> int:
    previous = os.umask(0o077)
    os.umask(previous)
    return previous


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of all warm processes and their commands: to start one, to send it something, or to end."""
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _connected(path: Path, preload: Sequence[str]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as channel:
        try:
            channel.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):  # none was started, or it was killed
            _start(path, preload)
            channel.connect(str(path))
        yield channel


def _start(path: Path, preload: Sequence[str]) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.set_inheritable(True)
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        command = [sys.executable, "-m", __name__, str(listener.fileno()), *preload]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=quiet, setsid=True, setsigmask=())


def _serve(listener: socket.socket) -> None:
    """Fork for each command, until the last fork has ended `keep_s` ago."""
    path, keep_s, idle_since_s = Path(listener.getsockname()), 0.0, time.monotonic()
    forks: dict[int, int] = {}  # by descriptor
    while True:
        remaining_s = None if forks else max(0.0, idle_since_s + keep_s - time.monotonic())
        ready, _, _ = select.select([listener.fileno(), *forks], [], [], remaining_s)
        for ended in forks.keys() & ready:
            os.waitpid(forks.pop(ended), 0)
            os.close(ended)
            idle_since_s = time.monotonic()
        if listener.fileno() in ready:
            pid, keep_s = _fork(listener)
            forks[os.pidfd_open(pid)] = pid
        if not ready:
            with _locked(path):
                if not select.select([listener], [], [], 0)[0]:
                    path.unlink(missing_ok=True)
                    return


def _fork(listener: socket.socket) -> tuple[int, float]:
    """Fork for the next command; return the process, and how long this one is kept after it."""
    channel, _ = listener.accept()
    with channel:
        _, received, _, _ = socket.recv_fds(channel, 1, 16)
        content = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    request = ForkRequest(**json.loads(content))
    with stop_signals_blocked():
        pid = os.fork()
        if pid == 0:
            listener.close()
            with contextlib.suppress(SystemExit):  # its usual end
                become_fork_server(request, received)
            os._exit(0)
    for descriptor in received:
        os.close(descriptor)
    return pid, request.keep_s


def become_fork_server(request: ForkRequest, received: Sequence[int]) -> None:
    """Run the code of a command's fork server in this fork, with the descriptors `received` for its places."""
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for descriptor in received]
    for descriptor, place in zip(aside, request.places, strict=True):
        os.dup2(descriptor, place)
    for descriptor in (*aside, *(set(received) - set(request.places))):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    os.umask(request.umask)
    os.chdir(request.folder)
    # These act on their process: each runs again where it is imported.
    for name in [name for name in sys.modules if name.startswith(_PRELOAD)]:
        del sys.modules[name]
    exec(request.code, {"__name__": "__main__"})


def _main(listener: socket.socket, preload: Sequence[str]) -> None:
    os.chdir("/")
    for name in preload:
        importlib.import_module(name)
    _serve(listener)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
