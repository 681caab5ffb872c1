"""Matrix products and convolutions as rough as those of any right kernel: a part of a reference's own noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
# By operation: the argument whose last axis is summed over; of a convolution, its weights.
_FACTORS: Mapping[Any, int] = {
    **dict.fromkeys((_ATEN.mm, _ATEN.bmm, _ATEN._grouped_mm), 0),
    **dict.fromkeys((_ATEN.addmm, _ATEN.baddbmm, _ATEN.convolution), 1),
}
_EPS = float(torch.finfo(torch.float32).eps)


class RoughSums(TorchDispatchMode):
    """Adds to each sum of float32 in a module the most that it may lose if its terms are added one after another.

    Libraries add in blocks, each instruction set in its own, and lose less. Each of `n` additions rounds a partial sum
    by up to eps / 2, and these errors are the steps of a random walk: eps / 2 * sqrt(n) of the sum, on average 0.15 eps
    * sqrt(n), but kernels approximate the functions between products, too. Rounding results to 16 bits hides all this.
    """

    def __init__(self) -> None:
        super().__init__()
        # Of its own: a model may draw from the global ones.
        self._generators: dict[torch.device, torch.Generator] = {}
        self._num_modules = 0

    def __enter__(self) -> Self:
        # Processors sum too: positive powers of a sound, which lose less, and whose logarithms would show it.
        self._hooks = (
            register_module_forward_pre_hook(lambda *_: self._count_modules(1)),
            register_module_forward_hook(lambda *_: self._count_modules(-1), always_call=True),
        )
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _count_modules(self, change: int) -> None:
        self._num_modules += change

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        sums = func(*args, **(kwargs or {}))
        factor = _FACTORS.get(func.overloadpacket)
        if factor is None or not self._num_modules or sums.dtype != torch.float32:
            return sums
        is_convolution = func.overloadpacket == _ATEN.convolution
        num_terms = args[factor][0].numel() if is_convolution else args[factor].shape[-1]
        axes = list(range(1, sums.dim())) if is_convolution else [-1]
        if sums.device not in self._generators:
            self._generators[sums.device] = torch.Generator(sums.device).manual_seed(0)
        steps = torch.empty_like(sums).normal_(generator=self._generators[sums.device])
        return sums + _EPS / 2 * num_terms**0.5 * sums.square().mean(axes, keepdim=True).sqrt() * steps
