"""Observers of a stage's models: torch's profiler, the work of its operators, and the rates that bound their speed."""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from omni_cli.backends.execution.ranges import clock_for
from omni_cli.stage.recording import MODULE_PREFIX, MachineRates, WorkPart, module_kind


class ModuleMarks:
    """Calls `enter(path)` and `leave()` for each call of a module in `roots`, innermost last, until `close`.

    Calls in other threads than that of the marks are ignored, as torch's profiler does not see them, either.
    """

    def __init__(
        self, roots: Mapping[str, nn.Module], enter: Callable[[str], None], leave: Callable[[], object]
    ) -> None:
        self._paths = {
            id(module): f"{root}.{path}" if path else root
            for root, top in roots.items()
            for path, module in top.named_modules()
        }
        self._enter, self._leave = enter, leave
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._before),
            # Even if a forward pass raises.
            register_module_forward_hook(self._after, always_call=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, _inputs: object) -> None:
        path = self._paths.get(id(module))
        if path is not None and threading.get_ident() == self._thread:
            self._enter(path)

    def _after(self, module: nn.Module, _inputs: object, _output: object) -> None:
        if id(module) in self._paths and threading.get_ident() == self._thread:
            self._leave()


def annotating_marks(roots: Mapping[str, nn.Module]) -> ModuleMarks:
    """Create marks in the trace of torch's profiler, called `module PATH`."""
    # A fraction of a microsecond; the public `record_function` takes twenty, and this runs for every module.
    from torch._C._profiler import _RecordFunctionFast

    opened: list[Any] = []

    def enter(path: str) -> None:
        annotation = _RecordFunctionFast(MODULE_PREFIX + path)
        annotation.__enter__()
        opened.append(annotation)

    def leave() -> None:
        opened.pop().__exit__(None, None, None)

    return ModuleMarks(roots, enter, leave)


class Tracer:
    """One session of the profiler, with marks for the modules in `roots`.

    Operators have their inputs' shapes and types, and allocations their addresses, to tell copies and tensors apart.
    Nothing waits for a device between `start` and `stop`.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True, acc_events=False)
        self._roots = roots
        self._marks: ModuleMarks | None = None

    def start(self) -> None:
        self._profile.start()
        if self._roots:
            self._marks = annotating_marks(self._roots)

    def stop(self) -> None:
        if self._marks is not None:
            self._marks.close()
        self._profile.stop()

    def write(self, path: Path) -> None:
        """Write a Chrome trace as JSON. Raises `RuntimeError` or `OSError` if it cannot be written whole."""
        self._profile.export_chrome_trace(str(path))


_OUTSIDE = "(outside modules)"


# torch counts the attention kernels of CUDA and its own products but not these.
_FLOPS = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query.shape, key.shape, value.shape)
    ),
    torch.ops.mkldnn._linear_pointwise: lambda inputs, weight, *_, **__: 2 * inputs.numel() * weight.shape[0],
}


class WorkCounter(TorchDispatchMode):
    """Counts matrix products, convolutions and attention by module, from `start` to `stop`.

    Their bytes are those of their inputs and outputs, each once. Everything else (norms, activations, additions) is
    assumed fused into them and adds nothing, so that the result is a lower bound.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._path: list[str] = []
        self._marks = ModuleMarks(roots, self._path.append, self._path.pop)
        self._parts: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self._unknown: set[str] = set()

    def start(self) -> None:
        self.__enter__()

    def stop(self) -> tuple[tuple[WorkPart, ...], tuple[str, ...]]:
        """The parts, and operators of libraries other than torch, whose work is unknown."""
        self.__exit__(None, None, None)
        self._marks.close()
        parts = tuple(WorkPart(*key, int(calls), *work) for key, (calls, *work) in self._parts.items())
        return parts, tuple(sorted(self._unknown))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in _FLOPS:
            # A composition of other operators is counted as those.
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        result = func(*args, **kwargs)
        if packet in _FLOPS:
            part = self._parts[module_kind(self._path[-1]) if self._path else _OUTSIDE, str(packet)]
            part[0] += 1
            part[1] += _FLOPS[packet](*args, **kwargs, out_val=result)
            part[2] += sum(
                tensor.nbytes for tensor in tree_leaves((args, kwargs, result)) if isinstance(tensor, torch.Tensor)
            )
        elif func.namespace not in ("aten", "prim", "prims", "profiler"):
            self._unknown.add(str(packet))
        return result


# Large enough for the device to reach its rate, small enough for a fraction of a second on a slow CPU.
_MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
# A GPU at its power limit slows down during the first second or two: the best of 0.3 s was 802 TFLOP/s where 666 last.
_SECONDS = {"cpu": 0.3, "cuda": 3.0}
_MIN_RUNS = 3


def measure_rates(device: torch.device, dtype: torch.dtype) -> MachineRates:
    """Return the rates that last, with this process's threads; takes one second, and six on a GPU."""
    size, num_bytes = _MATRIX_SIZE[device.type], _COPY_BYTES[device.type]
    with torch.inference_mode():
        a = torch.randn(size, size, device=device).to(dtype)
        b, out = a.t().contiguous(), torch.empty_like(a)
        product_s = _lasting_s(lambda: torch.mm(a, b, out=out), device)
        source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy_s = _lasting_s(lambda: target.copy_(source), device)
    return MachineRates(2 * size**3 / product_s, 2 * num_bytes / copy_s, str(dtype).removeprefix("torch."))


def _lasting_s(run: Callable[[], object], device: torch.device) -> float:
    """Return the least time of a run, on a GPU the median of the second half, which its power limits."""
    run()
    times, clock = list[float](), clock_for(device.type)
    while len(times) < _MIN_RUNS or sum(times) < _SECONDS[device.type]:
        began = clock.mark()
        run()
        times.append(clock.seconds(began, clock.mark()))
    return min(times) if device.type == "cpu" else statistics.median(times[len(times) // 2 :])
