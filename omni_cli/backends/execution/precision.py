"""The arithmetic of a stage's matrix products and convolutions: set for all layers, and read back from them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from omni_cli.config.schema import Precision
from omni_cli.core.errors import StageError

_LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


def use_precision(precision: Precision, *, stage: str, device: str) -> None:
    """Set float32's arithmetic in this process, which is the stage's own; raises `StageError` without TF32.

    torch's default is mixed: full float32 for products, TF32 for convolutions.
    """
    if precision == "tf32" and torch.device(device).type != "cuda":
        raise StageError(
            f"stage `{stage}`: `precision: tf32` needs a CUDA device, and the stage runs on `{device}`",
            stage=stage,
            hint=f"--set {stage}.precision=float32",
        )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def reduce_weights(module: nn.Module) -> None:
    """Keep the weights of `module`'s linear layers and convolutions in bfloat16, for `arithmetic("bfloat16")`."""
    for layer in module.modules():
        if isinstance(layer, _LAYERS):
            layer.weight = nn.Parameter(layer.weight.to(torch.bfloat16), requires_grad=False)
            if layer.bias is not None:
                layer.bias = nn.Parameter(layer.bias.to(torch.bfloat16), requires_grad=False)


def arithmetic(precision: Precision, device: str) -> AbstractContextManager[object]:
    """Return a context in which layers compute in `precision`; sums, norms and everything else stay in float32."""
    if precision != "bfloat16":
        return nullcontext()
    # Without autocast's cache of converted weights, which must not outlive a CUDA graph's capture.
    autocast: AbstractContextManager[object] = torch.autocast(
        torch.device(device).type, torch.bfloat16, cache_enabled=False
    )
    return autocast


def get_precision(modules: list[nn.Module]) -> str:
    """Read back the arithmetic of the layers of `modules`, in `precision`'s words; several are joined by `+`."""
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, _LAYERS)]
    return "+".join(sorted({_get_precision(layer) for layer in layers if layer.weight.is_floating_point()}))


def _get_precision(layer: nn.Module) -> str:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    if weight.dtype != torch.float32:
        return str(weight.dtype).removeprefix("torch.")
    products = torch.backends.cuda.matmul if isinstance(layer, nn.Linear) else torch.backends.cudnn
    return "tf32" if weight.device.type == "cuda" and products.allow_tf32 else "float32"


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
