"""The process that stages are forked from: it has done the slow imports, once for all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from typing import Any, ClassVar

from omni_cli.config.schema import EngineConfig
from omni_cli.families import family_of_stages
from omni_cli.temporary_folder import temporary_folder

# Stages that had to be killed leave semaphores of their libraries behind; the tracker removes them and would tell
# the user about it. It is a process of its own that gets its warning filters from here.
_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"


# What a terminal, `timeout` or a service manager sends to a whole process group. Only the command answers it.
_GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """A process started within never gets these signals, from its first instruction on; here they only wait."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def become_group_leader() -> None:
    """For a process from the fork server: a group of its own, which can be ended as a whole.

    Ctrl-C goes to the command alone; SIGTERM has its usual meaning again.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)


# The family's modules for `preload_family`, in the fork server's environment until it has read them.
FAMILY_MODULES = "OMNI_FAMILY_MODULES"
# Where a process that may have to be killed makes its sockets, so that whoever kills it can remove them.
SOCKETS_FOLDER = "OMNI_SOCKETS_FOLDER"
# What multiprocessing makes in a folder for temporary files.
SOCKET = "/pymp-01234567/listener-01234567"


def _settle_sockets() -> None:
    """Have multiprocessing make its folder, which it makes once, where its sockets' names fit."""
    usual = tempfile.tempdir
    tempfile.tempdir = os.environ.get(SOCKETS_FOLDER) or temporary_folder(len(SOCKET))
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = usual


class ForkServer:
    """A user of the interpreter's one fork server, which ends with its last user."""

    _users: ClassVar[set[int]] = set()

    def __init__(self, config: EngineConfig, *, verbose: bool = False) -> None:
        """It imports what the stages of `config` need; any stage can be forked from it.

        `verbose` lets what the imports print reach stderr.
        """
        parts = ["verbose" if verbose else "quiet", *sorted(config.backends, reverse=True), "family"]
        self._preload = [f"omni_cli.engine.process.preload_{part}" for part in parts]
        for module in self._preload:
            if find_spec(module) is None:  # the fork server would ignore it, and be slow
                raise ValueError(f"there is no module {module} to preload")
        family = family_of_stages(config.model, config.stages)
        self._modules = () if family is None else family.modules

    def start(self) -> ForkServerContext:
        """The context to start processes with; the imports begin now, if they have not begun before."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self._preload)
        if _TRACKER_FILTER not in sys.warnoptions:
            sys.warnoptions.append(_TRACKER_FILTER)
        # OpenMP's threads otherwise spin while they wait for each other. Several stages share the cores, and a
        # spinning thread keeps the very one it waits for from running: measured here, 30 s instead of 1 s.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # The imports ask torch whether there is a CUDA device. Its own way of finding out begins to use the device, and
        # a process that is forked after that cannot. With this it asks the driver's library.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        _settle_sockets()
        resource_tracker.ensure_running()  # unblocks signals when it is done, so not within
        os.environ[FAMILY_MODULES] = " ".join(self._modules)
        try:
            with _stop_signals_blocked():
                forkserver.ensure_running()
        finally:
            del os.environ[FAMILY_MODULES]
        self._users.add(id(self))
        return context

    def stop(self) -> None:
        """Done with it. Processes that were forked live on. Safe to call twice."""
        if id(self) not in self._users:
            return
        self._users.remove(id(self))
        server: Any = forkserver._forkserver  # multiprocessing offers no way to end it
        pid = server._forkserver_pid
        if not self._users and pid is not None:
            # Otherwise it would end only after finishing imports that are no longer needed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Its own clean-up: without it the next user would be sent to the server that has just been killed.
            with contextlib.suppress(ChildProcessError, FileNotFoundError):
                server._stop()
