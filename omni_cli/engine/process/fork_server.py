"""The process that stages are forked from, after it has done the slow imports once for all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ClassVar

from omni_cli.config.schema import EngineConfig
from omni_cli.engine.process.process_group import stop_signals_blocked
from omni_cli.engine.process.slow_imports import FAMILY_MODULES
from omni_cli.engine.process.warm_process import warm_process
from omni_cli.families import family_of_stages
from omni_cli.temporary_folder import temporary_folder

# Killed stages leave semaphores of their libraries behind. Python's resource tracker, a separate process, removes them
# and would warn the user; its warning filters are set here.
_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"


# The folder of a stage's sockets, so that whoever kills the stage can remove them.
SOCKETS_FOLDER = "OMNI_SOCKETS_FOLDER"
# The longest path that multiprocessing appends to a temporary folder.
SOCKET = "/pymp-01234567/listener-01234567"


def _settle_sockets() -> None:
    """Make multiprocessing create its folder, which it does once, where the names of its sockets fit."""
    usual = tempfile.tempdir
    tempfile.tempdir = os.environ.get(SOCKETS_FOLDER) or temporary_folder(len(SOCKET))
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = usual


class ForkServer:
    """A handle of the interpreter's one fork server, which ends with its last handle."""

    _users: ClassVar[set[int]] = set()

    def __init__(self, config: EngineConfig, *, verbose: bool = False, keep_warm_s: float | None = None) -> None:
        """Choose the imports that the stages of `config` need.

        `verbose` forwards output of the imports to stderr. With `keep_warm_s` they are done in a process that stays for
        so long after the command, unless another command has left one.
        """
        self._keep_warm_s = keep_warm_s
        parts = ["verbose" if verbose else "quiet", *sorted(config.backends, reverse=True), "family"]
        self._preload = [f"omni_cli.engine.process.preload_{part}" for part in parts]
        for module in self._preload:
            if (
                find_spec(module) is None
            ):  # the fork server would ignore a missing module, and stages would start slowly
                raise ValueError(f"there is no module {module} to preload")
        family = family_of_stages(config.model, config.stages)
        self._modules = () if family is None else family.modules

    def start(self) -> ForkServerContext:
        """Start the imports, unless they have started, and return the context to start processes with."""
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
        # The imports ask torch whether there is a CUDA device. By default torch then initialises CUDA, which processes
        # forked later cannot use. With this setting it asks the driver's library.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        _settle_sockets()
        resource_tracker.ensure_running()  # unblocks signals when it is done, so not within
        os.environ[FAMILY_MODULES] = " ".join(self._modules)
        try:
            with stop_signals_blocked():
                self._ensure_running()
        finally:
            del os.environ[FAMILY_MODULES]
        self._users.add(id(self))
        return context

    def _ensure_running(self) -> None:
        server: Any = forkserver._forkserver
        if self._keep_warm_s is None:
            server.ensure_running()
        elif server._forkserver_address is None:
            # Without "verbose" or "quiet", which is for the output of this command.
            with warm_process(self._preload[1:], self._keep_warm_s):
                server.ensure_running()
            server.ensure_running = lambda: None  # it waits for a child, which a fork of another process is not

    def stop(self) -> None:
        """Release the handle; forked processes continue. Idempotent."""
        if id(self) not in self._users:
            return
        self._users.remove(id(self))
        server: Any = forkserver._forkserver  # multiprocessing has no call to end it
        if self._users:
            return
        if server._forkserver_pid is not None:
            # Otherwise it would end only after its imports, which are no longer needed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
            # Without multiprocessing's own clean-up, the next handle would use the killed server.
            with contextlib.suppress(ChildProcessError, FileNotFoundError):
                server._stop()
        elif server._forkserver_address is not None:
            del server.ensure_running
            os.close(server._forkserver_alive_fd)
            Path(server._forkserver_address).unlink(missing_ok=True)
            server._forkserver_address = server._forkserver_alive_fd = None
