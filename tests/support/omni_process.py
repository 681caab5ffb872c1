"""The real `omni` in a process of its own, and what it leaves behind: processes, files, shared memory.

Every run gets a marker in its environment, which whatever it starts inherits, and folders of its own to work in, to
write to and for temporary files. A `sitecustomize` in the command's path notes each Python that starts, and the
moment in which `omni` begins to load its commands, from which delays are counted.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import omni_cli
from support.reaper import RUN, marked
from support.warm_start import PLANTED, START, WarmPopen

ROOT = Path(omni_cli.__file__).parents[1]
TIMEOUT_S = 240
# Short answers, where their length does not matter.
SHORT = ("--set", "thinker.sampling.max_tokens=8", "--set", "talker.sampling.max_tokens=16")
# Processes asked to end may need a moment on a busy machine.
GONE_WITHIN_S = 30

# A /dev/shm of the command's own, where this user may have one: in the real one other programs come and go.
_PRIVATE_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')

_SITECUSTOMIZE = """
import os, sys

def note(word):
    descriptor = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{{word}} {{os.getpid()}}\\n".encode())
    os.close(descriptor)

def watch(event, args):
    if event == "import" and args[0] == "omni_cli.cli.app":
        note("begun")

note("python")
sys.addaudithook(watch)
"""


@dataclass(frozen=True)
class Ended:
    """The result of a command; `leftovers` names processes, temporary files and shared memory that outlived it."""

    code: int
    out: str
    err: str
    seconds: float
    leftovers: tuple[str, ...]
    output_files: tuple[str, ...]
    started_others: bool

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    def check_clean(self) -> None:
        """Nothing that a user should not see, and nothing left behind."""
        assert "Traceback" not in self.err, self.err
        assert "Exception ignored" not in self.err, self.err
        assert self.leftovers == ()
        assert not [name for name in self.output_files if name.endswith(".tmp") or Path(name).name.startswith(".")]

    def check_error(self, code: int, *parts: str) -> None:
        """One `error:` paragraph, perhaps a `hint:`, before them only progress; every part of the text is there."""
        assert self.code == code, self.err
        labels = [line.split(":")[0] for line in self.err.splitlines() if line.startswith(("error:", "hint:"))]
        assert labels[:1] == ["error"] and labels[1:] in ([], ["hint"]), self.err
        assert ("\n" + self.err).count("\nerror: ") == 1 and "warning:" not in self.err, self.err
        for part in parts:
            assert part in self.err, self.err


class OmniProcess:
    """A running command; `folder` is empty and its own.

    `warm`: its fork server finds its imports done. `planted` is a script of `tests/support` that changes modules of
    ours in each of its Pythons.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        warm: bool = False,
        planted: str | None = None,
        program: tuple[str, ...] = ("-m", "omni_cli"),
        **options: Any,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.output = folder / "out"
        self._log = folder / "pythons"
        self.temporary.mkdir()
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(log=str(self._log)) + START)
        self._log.touch()
        self._shared_memory = folder / "shm"
        self._shared_memory.mkdir()
        start: Callable[..., subprocess.Popen[str]]
        if warm:
            start = functools.partial(WarmPopen, shared_memory=self._shared_memory if _may_mount() else None)
        else:
            start = functools.partial(subprocess.Popen, start_new_session=True)
            if _may_mount():
                prefix = (*_PRIVATE_SHARED_MEMORY, str(self._shared_memory), *prefix)
        self._began = time.monotonic()
        self.popen = start(
            [*prefix, options.pop("python", sys.executable), *program, *arguments],
            cwd=options.pop("cwd", folder),
            env={
                **os.environ,
                "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
                "TMPDIR": str(self.temporary),
                RUN: self._mark,
                **({} if planted is None else {PLANTED: str(Path(__file__).with_name(f"{planted}.py"))}),
                **(environment or {}),
            },
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            errors="replace",
            **options,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def wait_until_begun(self) -> None:
        """Until the command's own code runs; before, there is only Python."""
        self.wait_for(lambda: f"begun {self.pid}" in self._log.read_text().splitlines())

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Until the condition gives something; fails when the command ends before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := condition()):
            assert self.popen.poll() is None, "it ended before"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found

    def others(self) -> list[int]:
        """Ids of the processes that the command has started, directly or not."""
        return [pid for pid in marked(RUN, self._mark) if pid != self.pid]

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """As Ctrl-C does it: to the whole process group of the terminal."""
        if self.popen.poll() is None:
            os.killpg(self.pid, number)

    def end(self, input_text: str | None = None) -> Ended:
        """Wait for the end, and then for everything that the command started."""
        try:
            out, err = self.popen.communicate(input_text, timeout=TIMEOUT_S)
        finally:
            self.popen.kill()
        seconds = time.monotonic() - self._began
        lines = self._log.read_text().split()
        return Ended(
            self.popen.returncode,
            out or "",
            err or "",
            seconds,
            self._leftovers(),
            files_below(self.output),
            started_others=lines.count("python") > 1,
        )

    def _leftovers(self) -> tuple[str, ...]:
        deadline = time.monotonic() + GONE_WITHIN_S
        # Files stay where nobody is left to remove them.
        while marked(RUN, self._mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = self._left()
        for pid in marked(RUN, self._mark):
            os.kill(pid, signal.SIGKILL)
        return found

    def _left(self) -> tuple[str, ...]:
        processes = (f"process {pid} {_command_line(pid)}" for pid in marked(RUN, self._mark))
        names = sorted(path.name for path in self.temporary.iterdir())
        # torch's cache of compiled kernels, one a user, is meant to stay.
        stays = ("torchinductor_",)
        temporary = (f"temporary {name}" for name in names if not name.startswith(stays))
        shared = (f"shared memory {path.name}" for path in self._shared_memory.iterdir())
        return (*processes, *temporary, *shared)


def run_omni(folder: Path, *arguments: str, input_text: str | None = None, **options: Any) -> Ended:
    """Run a command to its end; `options` as of `OmniProcess`. It is warm unless options change how it starts."""
    if input_text is not None:
        options["stdin"] = subprocess.PIPE
    options.setdefault("warm", may_be_warm(options))
    return OmniProcess(folder, *arguments, **options).end(input_text)


def may_be_warm(options: Mapping[str, Any]) -> bool:
    """Return True if no option changes how the command's Python starts, or what its libraries read when imported."""
    return not options.keys() & {"prefix", "preexec_fn", "python"} and (
        "planted" in options or "environment" not in options
    )


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "(ended)"


@functools.cache
def _may_mount() -> bool:
    command = [*_PRIVATE_SHARED_MEMORY, "/dev/shm", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def files_below(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()))
