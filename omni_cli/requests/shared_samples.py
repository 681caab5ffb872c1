"""Long recordings in a file in memory, which the processes of a request share: no message copies them."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np


class SharedSamples(np.ndarray):
    """Samples float32 (num_samples,) in `file`, which other processes open by its `path`; parts have neither."""

    file: BinaryIO | None = None

    @property
    def path(self) -> Path | None:
        """Return the file's name for other processes; None on a system that has none."""
        path = None if self.file is None else Path(f"/proc/{os.getpid()}/fd/{self.file.fileno()}")
        return path if path is not None and path.exists() else None


def new_file() -> BinaryIO:
    """Return an empty file without a name."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("samples", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    return cast(BinaryIO, tempfile.TemporaryFile())


def share_samples(file: BinaryIO, num_samples: int) -> SharedSamples:
    """Return the samples that another process has written to a file. Raises `ValueError` if it has fewer."""
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        # The other process may still have it open: what is read here must stay.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    samples = open_samples(file, num_samples).view(SharedSamples)
    samples.file = file
    return samples


def open_samples(file: BinaryIO, num_samples: int) -> np.ndarray:
    """Return samples of a file, which are read when they are needed. Raises `ValueError` if it has fewer."""
    content = mmap.mmap(file.fileno(), 4 * num_samples, access=mmap.ACCESS_READ)
    return np.frombuffer(content, np.float32)
