"""What devices this machine has, without importing torch."""

from __future__ import annotations

import os
from pathlib import Path


def has_cuda_device() -> bool:
    """Whether an NVIDIA device is there and visible; the driver's device files say so."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
