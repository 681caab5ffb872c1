"""A process that stays between commands: each command's fork server is a fork of it, as if newly started."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni_cli.engine.process import warm_process
from omni_cli.errors import OmniError

# A command with a fork server that imports nothing of a backend, and prints what its process sees; then it waits.
COMMAND = r"""
import json, os, sys
from types import SimpleNamespace
from omni_cli.engine.process.fork_server import ForkServer

def answer(connection):
    umask = os.umask(0)
    os.write(1, b"of its process\n")
    server = os.getppid()
    parent = int(open(f"/proc/{server}/stat").read().rpartition(")")[2].split()[1])
    seen = dict(warm=parent, folder=os.getcwd(), umask=umask, term=os.environ.get("TERM"))
    seen |= dict(server=server, again="omni_cli.engine.process.preload_family" in sys.modules)
    connection.send(seen)

if __name__ == "__main__":
    keep_s, waits = float(sys.argv[1]), len(sys.argv) > 2
    config = SimpleNamespace(backends=[], model="builtin:nothing", stages=())
    server = ForkServer(config, verbose=True, keep_warm_s=keep_s)
    context = server.start()
    assert server.start() is context
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    seen = ours.recv()
    process.join()
    os.write(2, json.dumps(seen).encode() + b"\n")
    if waits:
        sys.stdin.read()
    server.stop()
"""
GONE_S = 20.0


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for sockets of this test alone; the name of `tmp_path` may be too long for them."""
    with tempfile.TemporaryDirectory(prefix="omni-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def command(tmp_path: Path, sockets: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts such a command; `keep_s` is how long the process stays."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)

    def start(keep_s: float, *, waits: bool = False, **options) -> subprocess.Popen[str]:
        environment = os.environ | {"TMPDIR": str(sockets), "PYTHONDONTWRITEBYTECODE": "1"} | options.pop("extra", {})
        arguments = [sys.executable, str(script), str(keep_s), *(["waits"] if waits else [])]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(arguments, **streams, text=True, env=environment, cwd=tmp_path, **options)

    return start


def seen_by(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=60)
    # A fork server sends output to the command's stderr.
    assert (process.returncode, out, err.splitlines()[0]) == (0, "", "of its process"), err
    return json.loads(err.splitlines()[-1])


def is_running(pid: int) -> bool:
    """Tell whether a process runs that need not be a child of this one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    until_s = time.monotonic() + GONE_S
    while is_running(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not is_running(pid)


def test_later_commands_fork_from_the_process_of_the_first_with_their_own_surroundings(
    command, tmp_path: Path, sockets: Path
):
    first = seen_by(command(60, umask=0o022))
    second = seen_by(command(60, umask=0o027, extra={"TERM": "other"}))
    assert first["warm"] == second["warm"] != os.getpid() and first["server"] != second["server"]
    assert (first["umask"], second["umask"], second["term"]) == (0o022, 0o027, "other")
    assert first["folder"] == second["folder"] == str(tmp_path)
    assert first["again"] and second["again"], "modules that act on their process run in each fork server"
    assert stat.S_IMODE((sockets / f"omni-{os.getuid()}").stat().st_mode) == 0o700

    last = seen_by(command(0))
    assert last["warm"] == first["warm"] and ends(last["warm"])
    assert [path.name for path in (sockets / f"omni-{os.getuid()}").iterdir()] == ["lock"]


def test_it_stays_while_a_command_runs_and_its_fork_ends_with_a_killed_command(command):
    running = command(0, waits=True)
    assert running.stderr.readline() == "of its process\n"
    seen = json.loads(running.stderr.readline())
    assert seen_by(command(0))["warm"] == seen["warm"] and is_running(seen["warm"]), "another command still runs"
    running.kill()
    assert ends(seen["server"]) and ends(seen["warm"])
    running.communicate()


def test_commands_that_start_together_share_one(command):
    together = [command(1) for _ in range(3)]
    assert len({seen_by(each)["warm"] for each in together}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_was_ended_is_replaced(command, number):
    first = seen_by(command(60))["warm"]
    os.kill(first, number)
    assert ends(first)
    second = seen_by(command(0))["warm"]
    assert second != first and ends(second)


def test_another_environment_or_set_of_processors_gets_another_process(command):
    kept = seen_by(command(60))["warm"]
    others = {
        seen_by(command(0, extra={"OMP_NUM_THREADS": "1"}))["warm"],
        seen_by(command(0, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})))["warm"],
    }
    assert len(others | {kept}) == 3
    assert seen_by(command(0))["warm"] == kept and all(map(ends, others | {kept}))


def test_code_or_packages_that_have_changed_get_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = warm_process.fingerprint(["a"])
    assert warm_process.fingerprint(["a"]) == before != warm_process.fingerprint(["b"])
    (tmp_path / "one-1.0.dist-info").mkdir()
    installed = warm_process.fingerprint(["a"])
    (tmp_path / "other-1.0.dist-info").mkdir()
    assert len({before, installed, warm_process.fingerprint(["a"])}) == 3


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warm_process, "temporary_folder", lambda room: str(tmp_path))
    (tmp_path / f"omni-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(OmniError, match="is not a folder that only you can enter"):
        warm_process._folder()
