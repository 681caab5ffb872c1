"""NVIDIA's Multi-Process Service, by which the stages that share a GPU run on it at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import StageError, UsageError
from omni_cli.engine.devices import has_cuda_device
from omni_cli.stage.protocol import StageSpec

_CONTROL = "nvidia-cuda-mps-control"
# Where its clients find a server; set by a user who has started one.
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
# A shell that starts the server and ends it, with its folder, once its stdin closes: also when the command is killed.
_GUARD = f'{_CONTROL} -d && echo started && read -r _; echo quit | {_CONTROL}; rm -rf -- "$0"'
_STOP_S = 10.0
_FIRST_CLIENT_S = 60.0
# Fails with the driver's number of the error if CUDA cannot be used.
_FIRST_CLIENT = """
import ctypes
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
error = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
error = error or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
raise SystemExit(f"error {error}" if error else 0)
"""


class MpsServer:
    """A server for the stages of one engine; the one that the user has started, if there is one.

    `folder` is where its clients find it, None if there is none.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.folder = os.environ.get(PIPES)
        self._guard: subprocess.Popen[str] | None = None
        self._required = config.mps is True
        devices = [stage.devices for stage in config.stages]
        share_one = len(set(devices)) < len(devices)
        self._wanted = self._required or (config.mps == "auto" and share_one and has_cuda_device())

    def start(self) -> None:
        """Start the server, unless the profile does not want one.

        Raises `UsageError` if `mps: true` asks for one and there can be none here. With `mps: auto` there is none then.
        """
        if not self._wanted or self.folder is not None:
            return
        try:
            self._start()
        except UsageError:
            self.stop()
            if self._required:
                raise

    def _start(self) -> None:
        if shutil.which(_CONTROL) is None:
            raise UsageError(
                f"`mps: true` needs `{_CONTROL}`, which is not installed here",
                hint="it comes with NVIDIA's driver, in some distributions as a package of its own; or --set mps=false",
            )
        self.folder = tempfile.mkdtemp(prefix="omni-mps-")
        environment = {**os.environ, PIPES: self.folder, _LOGS: self.folder}
        # The server numbers all devices, and its clients' variable names some of these.
        server = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, self.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=server, start_new_session=True,
        )  # fmt: skip
        assert self._guard.stdout is not None
        said = self._guard.stdout.readline().strip()
        if said != "started":
            raise UsageError(f"`mps: true`: `{_CONTROL}` did not start: {said}", hint="--set mps=false")
        # Where the server runs, its clients may still not: in some containers, or on a part of a device.
        problem = _problem_of_a_client(environment)
        if problem is not None:
            reason = f"`mps: true`: CUDA does not start as a client of the server: {problem}"
            raise UsageError(reason, hint="--set mps=false")

    def stop(self) -> None:
        """End the server that `start` has started, whose clients have ended. Idempotent."""
        if self._guard is None:
            return
        guard, self._guard, self.folder = self._guard, None, None
        # Later it ends by itself: with the last client.
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.communicate(timeout=_STOP_S)


def _problem_of_a_client(environment: Mapping[str, str]) -> str | None:
    """Start CUDA in a process of its own with these variables; return why it does not start."""
    command = [sys.executable, "-ISs", "-c", _FIRST_CLIENT]
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_FIRST_CLIENT_S, check=True)
    except subprocess.TimeoutExpired:
        return f"no answer in {_FIRST_CLIENT_S:g} s"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip().rpartition("\n")[2] or f"exit code {error.returncode}"
    return None


def mps_effect(spec: StageSpec) -> dict[str, bool]:
    """Return True if this stage's process, or one of its ranks, is a client of a server.

    Empty if the profile has `mps: false` and there is no server. Raises `StageError` if it has to be a client.
    """
    if PIPES not in os.environ:
        return {"mps": False} if spec.mps else {}
    servers = _numbers("get_server_list")
    is_client = any(_get_group(pid) == os.getpgrp() for each in servers for pid in _numbers(f"get_client_list {each}"))
    if spec.mps is True and not is_client:
        name = spec.stage.name
        raise StageError(
            f"`mps: true`, but stage `{name}` is not a client of the server", stage=name, hint="--set mps=false"
        )
    return {"mps": is_client}


def _get_group(pid: int) -> int | None:
    """Return the group of a process, which a stage leads; None if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _numbers(question: str) -> Iterator[int]:
    """Ask the server for process ids."""
    answer = subprocess.run([_CONTROL], input=question, capture_output=True, text=True, check=False).stdout
    yield from (int(word) for word in answer.split() if word.isdigit())
