"""Matrix products and convolutions as rough as those of any right kernel: a part of a reference's own noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
# By operation: the argument whose last axis is summed over.
_FACTOR: Mapping[Any, int] = {
    **dict.fromkeys((_ATEN.mm, _ATEN.bmm, _ATEN._grouped_mm), 0),
    **dict.fromkeys((_ATEN.addmm, _ATEN.baddbmm), 1),
}
_EPS = float(torch.finfo(torch.float32).eps)


class RoughSums(TorchDispatchMode):
    """Adds to each sum of float32 in a module what it loses if its terms are added one after another, and a bit more.

    Libraries add in blocks, each instruction set in its own, and lose less. Each of `n` additions rounds a partial sum
    by up to eps / 2, and these errors are the steps of a random walk, 0.15 eps * sqrt(n) of the sum. Here it is eps / 4
    * sqrt(n): kernels also approximate the functions between products. The rounding of results to 16 bits hides this.
    """

    def __init__(self) -> None:
        super().__init__()
        # Of its own: a model may draw from the global ones.
        self._generators: dict[torch.device, torch.Generator] = {}
        self._num_open = 0

    def __enter__(self) -> Self:
        # Processors sum too: positive powers of a sound, which lose less, and whose logarithms would show it.
        self._hooks = (
            register_module_forward_pre_hook(lambda *_: self._count(1)),
            register_module_forward_hook(lambda *_: self._count(-1), always_call=True),
        )
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for hook in self._hooks:
            hook.remove()

    def _count(self, change: int) -> None:
        """Count the modules whose `forward` runs."""
        self._num_open += change

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket
        if not self._num_open:
            return result
        if name in _FACTOR:
            return self._roughen(result, args[_FACTOR[name]].shape[-1], [-1])
        if name == _ATEN.convolution:
            return self._roughen(result, args[1][0].numel(), range(1, result.dim()))
        return result

    def _roughen(self, sums: torch.Tensor, num_terms: int, axes: Sequence[int]) -> torch.Tensor:
        """Return the sums with errors; their size is of the sums along `axes`."""
        if sums.dtype != torch.float32:
            return sums
        if sums.device not in self._generators:
            self._generators[sums.device] = torch.Generator(sums.device).manual_seed(0)
        steps = torch.empty_like(sums).normal_(generator=self._generators[sums.device])
        return sums + _EPS / 4 * num_terms**0.5 * sums.square().mean(list(axes), keepdim=True).sqrt() * steps
