"""Imports that take seconds, done once in the fork server."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from omni_cli.core.compat.libraries import capabilities_by_nvml, prepare_libraries, quick_package_names

_INTERVAL_S = 0.2
# For a hash that a fork computes, after the imports that it is computed beside.
_PATIENCE_S = 5.0
# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_NEVER = 2**31 - 1

_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; return False if the C library has no such setting or the user set one.

    By default glibc returns large blocks when they are freed, and the next allocation pays for their pages again. How
    often depends on the layout of the heap, so two processes of the same stage differ in speed for their whole lives:
    12 loads of `tiny-image` were up to 12 % apart (standard deviation 4 %), with this less than 1.2 %, and 4 % faster
    on average. The memory peak is the same; it is only kept.
    """
    if any(name in os.environ for name in _USERS_OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting one of them disables adaptation of the other, so both are set.
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))


def _end_with_parent(parent: int, stopped: threading.Event) -> None:
    while not stopped.wait(_INTERVAL_S):
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Import within this context; the process ends immediately if the command ends.

    What cannot be imported is ignored here, where it would end the fork server; the stage that needs it reports it.

    Garbage collection is off, which saves a tenth of the time: imported objects live as long as the process and its
    forks.
    """
    stopped = threading.Event()
    watch = threading.Thread(
        target=_end_with_parent, args=(os.getppid(), stopped), name="omni-orphan-watch", daemon=True
    )
    watch.start()
    gc.disable()
    began_s = time.perf_counter()
    try:
        keep_freed_memory()
        prepare_libraries()
        with capabilities_by_nvml(), quick_package_names():
            yield
        told = f"imports took {time.perf_counter() - began_s:.2f} s"
    except Exception as error:  # noqa: BLE001 - whatever a library raises while it is imported
        told = f"preload: {type(error).__name__}: {error}"
    finally:
        gc.freeze()
        gc.enable()
        stopped.set()
        watch.join()  # before anything is forked
    with contextlib.suppress(OSError):  # who reads it may have ended
        sys.stderr.write(f"{told}\n")


@contextlib.contextmanager
def hashed_beside(function: Any) -> Iterator[None]:
    """Have a fork call the function within this context, and then `set` its value in the function's cache.

    A thread would wait for the interpreter's lock after every file that it reads. If no value comes, the function is
    called here.
    """
    ours, theirs = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            threading.Thread(target=_end_with_parent, args=(parent, threading.Event()), daemon=True).start()
            os.write(theirs, function())
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        yield
        if select.select([ours], [], [], _PATIENCE_S)[0] and (value := os.read(ours, select.PIPE_BUF)):
            function.set(value)
    finally:
        os.close(ours)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    function()


class _Late(ModuleType):
    """A stand-in for a module, which is imported when this function of it is called or anything else of it is read."""

    def __init__(self, name: str, function: str, package: ModuleSpec) -> None:
        super().__init__(name)
        self.__spec__ = package  # asked for by `find_spec`
        self.__path__ = [str(Path(place, *name.split(".")[1:])) for place in package.submodule_search_locations or ()]
        setattr(self, function, lambda *arguments, **options: self.__getattr__(function)(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module for it
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def left_out(modules: Mapping[str, str | None]) -> Iterator[None]:
    """Within this context, do not import these modules: as if they were not installed, or until they are used.

    With the name of a function, which is what importers name, they get a stand-in that works on afterwards.
    """
    instead: dict[str, Any] = {}
    for name in modules.keys() - sys.modules.keys():
        package, function = importlib.util.find_spec(name.partition(".")[0]), modules[name]
        instead[name] = _Late(name, function, package) if function and package else None
    sys.modules.update(instead)
    try:
        yield
    finally:
        for name in [name for name, module in instead.items() if sys.modules.get(name, name) is module]:
            del sys.modules[name]
