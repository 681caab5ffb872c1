"""Answers about CUDA devices for imports, which leave CUDA uninitialised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class _Properties:
    """Properties of a device: its compute capability from NVML, anything else from torch when it is first read."""

    def __init__(self, index: int, usual: Any) -> None:
        import pynvml
        import torch

        self._index, self._usual = index, usual
        # With the devices that CUDA_VISIBLE_DEVICES leaves; torch has no public name for that.
        handle = torch.cuda._get_pynvml_handler(index)
        self.major, self.minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual(self._index), name)


@contextlib.contextmanager
def capabilities_by_nvml() -> Iterator[None]:
    """Within this context torch takes compute capabilities from NVML, until CUDA is initialised.

    torchao and bitsandbytes ask for them while they are imported, and transformers and diffusers import both wherever
    they are installed. By torch's own way that initialises CUDA, which processes forked later cannot use then. What
    imports keep of the replaced functions works on in the forks.
    """
    from torch import cuda
    from torch.cuda._utils import _get_device_index

    usual_properties, usual_device = cuda.get_device_properties, cuda.current_device

    def current_device() -> int:
        return usual_device() if cuda.is_initialized() else 0

    def get_device_properties(device: Any = None) -> Any:
        if cuda.is_initialized():
            return usual_properties(device)
        return _Properties(0 if device is None else _get_device_index(device), usual_properties)

    cuda.current_device, cuda.get_device_properties = current_device, get_device_properties
    try:
        yield
    finally:
        cuda.current_device, cuda.get_device_properties = usual_device, usual_properties
