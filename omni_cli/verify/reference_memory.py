"""The memory that a reference needs, known before it loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omni_cli.checkpoints.derive import ITEMSIZES
from omni_cli.checkpoints.files import count_parameters
from omni_cli.engine.devices import has_cuda_device
from omni_cli.errors import OmniError
from omni_cli.machine import read_memory
from omni_cli.models.scores import Way
from omni_cli.report.units import memory

# A process with torch, activations, and a KV cache of a few hundred tokens.
_BESIDE_BYTES = 1 << 30
_ITEMSIZES = {**ITEMSIZES, "float64": 8}


def check_memory(folder: Path, ways: Sequence[Way]) -> None:
    """Raise `OmniError`, with the memory needed, if the weights do not fit in the widest type."""
    if any(way.low_memory for way in ways) or has_cuda_device():
        return
    needed = count_parameters(folder) * max(_ITEMSIZES[way.dtype] for way in ways) + _BESIDE_BYTES
    free = read_memory().available_bytes
    if needed > free:
        raise OmniError(
            f"the reference needs {memory(needed)} of memory, and {memory(free)} are free",
            hint="`--low-memory` reads the weights that do not fit when they are used",
        )
