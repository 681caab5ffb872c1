"""Linear layers on a CPU, multiplied by oneDNN."""

from __future__ import annotations

import torch
from torch import nn


class OneDnnLinear(nn.Linear):
    """Replaces `linear`, and a GELU after it, for float32 on a CPU with weights that do not change.

    Torch's own layers multiply by MKL, which takes twice as long on AMD's processors with AVX-512 and as long on
    Intel's. The operation is the one that torch.compile uses.
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
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, name, [], algorithm)
        return output
