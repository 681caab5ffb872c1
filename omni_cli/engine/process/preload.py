"""Imports that take seconds, done once in the fork server."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from omni_cli.compat.cuda_properties import capabilities_by_nvml
from omni_cli.compat.libraries import prepare_libraries
from omni_cli.compat.package_names import quick_package_names
from omni_cli.engine.process.host_allocator import keep_freed_memory
from omni_cli.engine.process.orphan_watch import OrphanWatch


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Import within this context; the process ends immediately if the command ends.

    What cannot be imported is ignored here, where it would end the fork server; the stage that needs it reports it.

    Garbage collection is off, which saves a tenth of the time: imported objects live as long as the process and its
    forks.
    """
    watch = OrphanWatch()
    gc.disable()
    try:
        keep_freed_memory()
        prepare_libraries()
        with capabilities_by_nvml(), quick_package_names():
            yield
    except Exception as error:  # noqa: BLE001 - whatever a library raises while it is imported
        sys.stderr.write(f"preload: {type(error).__name__}: {error}\n")
    finally:
        gc.freeze()
        gc.enable()
        watch.stop()
