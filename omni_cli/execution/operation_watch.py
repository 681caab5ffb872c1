"""Observe a model's operations for the memory that must outlive a CUDA graph of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode


class OperationWatch(TorchDispatchMode):
    """Sees each operation of a model on `device`.

    `external` are the storages that operations read and none of them created: weights, and tensors that the model
    keeps between calls. A graph reads their addresses, so they must live as long as the graph.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.external: dict[int, torch.UntypedStorage] = {}
        self._device = device
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [leaf for leaf in _tensors((args, kwargs)) if leaf.device == self._device]
        result = func(*args, **(kwargs or {}))
        self.note(inputs, result)
        return result

    def note(self, inputs: list[torch.Tensor], result: object) -> None:
        """Record what an operation, or a region of several, read and made."""
        for tensor in inputs:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._made:
                self.external[storage._cdata] = storage
        for tensor in _tensors(result):
            if tensor.untyped_storage()._cdata not in self.external:
                self._made.add(tensor.untyped_storage()._cdata)


def unwatched(region: Callable[..., object]) -> Callable[..., object]:
    """Return compiled code that hides its operations from a watch: under one, torch would run them uncompiled.

    The watch sees what goes in and comes out. Weights that only the region reads must live as long as its module.
    """

    @functools.wraps(region)
    def run(*args: object, **kwargs: object) -> object:
        watch = _get_current_dispatch_mode()
        if not isinstance(watch, OperationWatch):
            return region(*args, **kwargs)
        with _disable_current_modes():
            result = region(*args, **kwargs)
        watch.note(_tensors((args, kwargs)), result)
        return result

    return run


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
