"""NVIDIA's Multi-Process Service, by which the stages that share a GPU run on it at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from omni_cli.errors import StageError, UsageError

_CONTROL = "nvidia-cuda-mps-control"
# Where the processes of a server find it; set by whoever has started one.
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
# A shell that starts the server and ends it, with its folder, once its stdin closes: also when the command is killed.
_GUARD = f'{_CONTROL} -d && echo started && read -r _; echo quit | {_CONTROL}; rm -rf -- "$0"'
_STOP_S = 10.0


class MpsServer:
    """A server for the processes that are started while it runs; the one that the user has started, if there is one."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server. Raises `UsageError` if this machine has none, or if it does not start."""
        if PIPES in os.environ:
            return
        if shutil.which(_CONTROL) is None:
            raise UsageError(
                f"`mps: true` needs `{_CONTROL}`, which is not installed here",
                hint="it comes with NVIDIA's driver, in some distributions as a package of its own; or --set mps=false",
            )
        folder = tempfile.mkdtemp(prefix="omni-mps-")
        os.environ |= {PIPES: folder, _LOGS: folder}
        # The server numbers all devices, and its clients' variable names some of these.
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        assert self._guard.stdout is not None
        said = self._guard.stdout.readline().strip()
        if said != "started":
            self.stop()
            raise UsageError(f"`mps: true`: `{_CONTROL}` did not start: {said}", hint="--set mps=false")

    def stop(self) -> None:
        """End the server that `start` has started, whose clients have ended. Idempotent."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        del os.environ[PIPES], os.environ[_LOGS]
        # Later it ends by itself: with the last client.
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.communicate(timeout=_STOP_S)


def mps_effect(stage: str, *, required: bool) -> dict[str, bool]:
    """Tell whether this stage's process, or one of its ranks, is a client of a server; empty if there is no server.

    Raises `StageError` if it has to be one.
    """
    if PIPES not in os.environ:
        return {}
    servers = _numbers("get_server_list")
    is_client = any(_group_of(pid) == os.getpgrp() for each in servers for pid in _numbers(f"get_client_list {each}"))
    if required and not is_client:
        raise StageError(
            f"`mps: true`, but stage `{stage}` is not a client of the server", stage=stage, hint="--set mps=false"
        )
    return {"mps": is_client}


def _group_of(pid: int) -> int | None:
    """Return the group of a process, which a stage leads; None if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _numbers(question: str) -> Iterator[int]:
    """Ask the server for process ids."""
    answer = subprocess.run([_CONTROL], input=question, capture_output=True, text=True, check=False).stdout
    yield from (int(word) for word in answer.split() if word.isdigit())
