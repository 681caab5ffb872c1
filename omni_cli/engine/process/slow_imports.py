"""Imports that take seconds, done once in the fork server."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from omni_cli.compat.libraries import prepare_libraries
from omni_cli.engine.process.host_allocator import keep_freed_memory
from omni_cli.engine.process.orphan_watch import OrphanWatch


@contextlib.contextmanager
def slow_imports() -> Iterator[None]:
    """Import within. The process ends at once if the command ends meanwhile.

    A package that is not installed or does not load is left to the stage that needs it, which reports it; here it would
    end the fork server. A module of ours that is missing raises `RuntimeError`.

    What is imported stays, in every process that is forked: garbage collection has nothing to find there. Imports take
    a tenth less time without it.
    """
    watch = OrphanWatch()
    gc.disable()
    try:
        keep_freed_memory()
        prepare_libraries()
        yield
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "omni_cli":
            raise RuntimeError(f"preload: {error}") from error
        sys.stderr.write(f"preload: {type(error).__name__}: {error}\n")
    finally:
        gc.freeze()
        gc.enable()
        watch.stop()
