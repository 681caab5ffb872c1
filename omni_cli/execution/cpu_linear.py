"""Linear layers on a CPU, each with the product and the activation that are fastest there."""

from __future__ import annotations

import math

import torch
from torch import nn


class OneDnnLinear(nn.Linear):
    """Replaces `linear`, and a GELU after it, for float32 on a CPU with weights that do not change.

    The operation is the one that torch.compile uses.
    """

    def __init__(self, linear: nn.Linear, gelu: nn.GELU | None = None) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        # In oneDNN's layout.
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias
        self._activation = ("none", "") if gelu is None else ("gelu", gelu.approximate)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) of `inputs` (..., in_features), both float32."""
        name, algorithm = self._activation
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, name, [], algorithm)
        return made


def fast_linear(linear: nn.Linear, gelu: nn.GELU | None = None) -> nn.Module:
    """Return what replaces `linear`, and `gelu` after it: oneDNN's, or MKL's, by which torch's own layers multiply.

    With AVX-512 oneDNN takes less than half of MKL's time on AMD's processors, and as long on Intel's. With AVX2 MKL is
    faster, 87 instead of 70 GFLOP/s on one core of an AMD EPYC, and oneDNN's GELU is four times as slow as `TanhGelu`.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        return OneDnnLinear(linear, gelu)
    if gelu is None:
        return linear
    return nn.Sequential(linear, TanhGelu() if gelu.approximate == "tanh" else gelu)


class TanhGelu(nn.Module):
    """GELU approximated by tanh, in place; torch's own takes twice as long.

    The approximation is x * sigmoid(2 * y) with y = sqrt(2 / pi) * (x + 0.044715 * x^3).
    """

    _LINEAR = 2 * math.sqrt(2 / math.pi)

    def __init__(self) -> None:
        super().__init__()
        self._linear = torch.tensor(self._LINEAR)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        share = torch.addcmul(self._linear, inputs, inputs, value=0.044715 * self._LINEAR)
        return inputs.mul_(share.mul_(inputs).sigmoid_())
