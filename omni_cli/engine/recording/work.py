"""Count the work and memory traffic of a diffusion stage, operator by operator while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from omni_cli.engine.recording.modules import ModuleMarks
from omni_cli.stage.recording import WorkPart, module_kind

_OUTSIDE = "(outside modules)"


def _cpu_attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _onednn_flops(inputs: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * int(inputs.numel()) * int(weight.shape[0])


# torch counts the attention kernels of CUDA and its own products but not these.
_FLOPS = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops,
    torch.ops.mkldnn._linear_pointwise: _onednn_flops,
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
