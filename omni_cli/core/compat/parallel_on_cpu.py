"""Context parallelism of diffusers on a CPU.

diffusers 0.42 numbers a rank's device by `rank % torch.accelerator.device_count()`, which is 0 without an accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omni_cli.core.compat import replace_attributes


@contextmanager
def one_device_at_least() -> Iterator[None]:
    """Make torch count the CPU as a device while diffusers sets up its ranks; does nothing with an accelerator."""
    import torch

    num_devices = max(1, torch.accelerator.device_count())
    with replace_attributes(torch.accelerator, device_count=lambda: num_devices):
        yield
