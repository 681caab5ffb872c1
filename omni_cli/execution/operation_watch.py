"""Observe a model's operations: those that a CUDA graph cannot contain, and the memory that must outlive it."""

from __future__ import annotations

import functools
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

_LIBRARY = str(Path(torch.__file__).parent)


class UncapturableError(RuntimeError):
    """An operation that cannot be part of a CUDA graph; the message is a description."""


class OperationWatch(TorchDispatchMode):
    """Sees each operation of a model on `device` before it runs; `last` is the name of the latest one.

    With `strict`, operations that a CUDA graph cannot contain raise `UncapturableError` instead of running: those that
    copy a value to the host, draw random numbers, or have results whose shape depends on values.

    `external` are the storages that operations read and none of them created: weights, and tensors that the model
    keeps between calls. A graph reads their addresses, so they must live as long as the graph.
    """

    def __init__(self, device: torch.device, *, strict: bool) -> None:
        super().__init__()
        self.last: str | None = None
        self.external: dict[int, torch.UntypedStorage] = {}
        self._device = device
        self._strict = strict
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode, composite operations arrive whole, but only their parts matter.
        if not self._has_kernel(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.last = func.name()
        inputs = [leaf for leaf in _tensors((args, kwargs)) if leaf.device == self._device]
        if self._strict:
            self._refuse(func, inputs, args, kwargs)
            result = self._without_random_numbers(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
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

    def _has_kernel(self, func: Any) -> bool:
        """Return True if the device has a kernel of its own for it, as for fused norms: it runs, and not the parts."""
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), self._device.type.upper()))

    def _refuse(self, func: Any, inputs: list[torch.Tensor], args: Any, kwargs: Any) -> None:
        if not inputs:
            return
        if torch.Tag.data_dependent_output in func.tags:
            raise UncapturableError("waits for a value from the device")
        if torch.Tag.dynamic_output_shape in func.tags and _shape_depends_on_values(func, args):
            raise UncapturableError("makes a result whose shape depends on values on the device")
        target = kwargs.get("device")
        if target is not None and torch.device(target).type == "cpu" != self._device.type:
            raise UncapturableError("copies a tensor to the host")

    def _without_random_numbers(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operation; `UncapturableError` if it draws random numbers, which a replay would not redraw."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise UncapturableError("draws random numbers")
        before = self._generator_states()
        result = func(*args, **kwargs)
        # Attention kernels have the tag because of dropout, which is off here.
        if any(not torch.equal(a, b) for a, b in zip(before, self._generator_states(), strict=True)):
            raise UncapturableError("draws random numbers")
        return result

    def _generator_states(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else states


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


def _shape_depends_on_values(func: Any, args: Any) -> bool:
    if func.overloadpacket is not torch.ops.aten.index:
        return True
    # Indexing has the tag because of masks.
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def where_it_failed(error: BaseException, root: torch.nn.Module) -> str:
    """Locate the innermost running part of `root` and its source line: "in `blocks.0.attn` (Attention)".

    Read from the traceback, so that the model needs no hooks.
    """
    names = {id(module): name for name, module in root.named_modules()}
    where, line = "", ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            where = f"in `{names[id(owner)] or 'forward'}` ({type(owner).__name__})"
        file = frame.f_code.co_filename
        if where and not file.startswith(_LIBRARY) and file != __file__:
            source = linecache.getline(file, number).strip()
            line = f"{Path(file).name}:{number}" + (f": `{source}`" if source else "")
    return ", ".join(part for part in (where, line) if part)
