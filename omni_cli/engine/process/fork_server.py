"""The process that stages are forked from, after it has done the slow imports once for all of them."""

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

# Killed stages leave semaphores of their libraries behind. Python's resource tracker, a separate process, removes them
# and would warn the user; its warning filters are set here.
_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"


# Sent to a whole process group by a terminal, `timeout` or a service manager. Only the command handles them.
_GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
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


# Passes the family's modules to `preload_family`.
FAMILY_MODULES = "OMNI_FAMILY_MODULES"
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

    def __init__(self, config: EngineConfig, *, verbose: bool = False) -> None:
        """Choose the imports that the stages of `config` need.

        `verbose` forwards output of the imports to stderr.
        """
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
            with _stop_signals_blocked():
                forkserver.ensure_running()
        finally:
            del os.environ[FAMILY_MODULES]
        self._users.add(id(self))
        return context

    def stop(self) -> None:
        """Release the handle; forked processes continue. Idempotent."""
        if id(self) not in self._users:
            return
        self._users.remove(id(self))
        server: Any = forkserver._forkserver  # multiprocessing has no call to end it
        pid = server._forkserver_pid
        if not self._users and pid is not None:
            # Otherwise it would end only after its imports, which are no longer needed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Without multiprocessing's own clean-up, the next handle would use the killed server.
            with contextlib.suppress(ChildProcessError, FileNotFoundError):
                server._stop()
