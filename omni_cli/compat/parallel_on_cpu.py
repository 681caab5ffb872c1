"""Context parallelism of diffusers on a CPU.

diffusers 0.42 numbers a rank's device by `rank % torch.accelerator.device_count()`, which is 0 without an accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def one_device_at_least() -> Iterator[None]:
    """Make torch count the CPU as a device while diffusers sets up its ranks; does nothing with an accelerator."""
    import torch

    with patch.object(torch.accelerator, "device_count", return_value=max(1, torch.accelerator.device_count())):
        yield
