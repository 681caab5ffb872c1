"""The convolutions that end code2wav, on a CUDA device: one Triton kernel for each.

Samples are rows of channels, (batch, num_rows, channels). A kernel multiplies the rows that a convolution sees with its
weights, adds the bias and a residual unit's input, and applies the activation before the next convolution. All of these
are float32, while transformers' modules round after each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import triton
from torch import nn
from transformers.models.mimi.modeling_mimi import MimiResidualVectorQuantizer
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modules

from omni_cli.models.codec.row_kernel import convolve

# So many programs fill a device; fewer are of half the size.
_MANY_PROGRAMS = 300


def fuse_operations(module: nn.Module) -> None:
    """Let a norm be one operation, and a sum of codebooks' vectors two; their modules keep their weights."""
    for part in module.modules():
        fused: Any = part
        if isinstance(part, modules.Qwen3OmniMoeCode2WavRMSNorm | modules.Qwen3OmniMoeRMSNorm):
            shape, epsilon = part.weight.shape, part.variance_epsilon
            fused.forward = partial(nn.functional.rms_norm, normalized_shape=shape, weight=part.weight, eps=epsilon)
        elif isinstance(part, MimiResidualVectorQuantizer):
            table = torch.cat([layer.codebook.embed for layer in part.layers])
            fused.decode = partial(_sum_vectors, table, part.codebook_size, part.output_proj.weight[..., 0])


def _sum_vectors(table: torch.Tensor, size: int, projection: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Return (batch, channels, num_frames) of codes (batch, num_codebooks, num_frames), `size` of each in `table`."""
    begins = torch.arange(codes.shape[1], device=codes.device) * size
    return nn.functional.linear(nn.functional.embedding(codes.mT + begins, table).sum(dim=2), projection).mT


class _Convolution:
    """A causal convolution, with the activation after it; it may add a residual unit's input, or keep the next's."""

    def __init__(self, module: Any, snake: Any, *, adds: bool, keeps: bool) -> None:
        conv = self.conv = module.conv
        self._snake, self.flags = snake, (adds, keeps, snake is not None)
        # Zeros precede the first rows, or what these make alone is cut.
        self.pads = not getattr(module, "left_pad", 0)
        (taps,), (self.stride,), (step,) = conv.kernel_size, conv.stride, conv.dilation
        # The same memory, which is free while a stage sleeps, with the output channels of a tap side by side.
        order = (2, 1, 0) if self.stride == 1 else (0, 2, 1)
        laid, own = conv.weight.data.permute(order).contiguous(), conv.weight.data
        conv.weight.data = weight = own.as_strided(laid.shape, laid.stride()).copy_(laid).permute(order)
        self.columns, self.reach = self.stride * conv.out_channels, (taps - 1) * step
        self._numbers = (0, step, taps, weight.stride(2), weight.stride(1))
        if self.stride > 1:  # its latest row has the first taps
            self.reach = taps // self.stride - 1
            self._numbers = (self.reach, -1, self.reach + 1, self.columns, weight.stride(0))

    def __call__(self, x: torch.Tensor, out: torch.Tensor, to: torch.Tensor, head: int) -> None:
        """Read rows `x`, and write to those of `to` from `head` on; `out` is of what is added or kept."""
        (batch, read, channels_in), conv, columns = x.shape, self.conv, self.columns
        rows = batch * (read - self.reach)
        COLUMNS = min(64, max(16, triton.next_power_of_2(columns)))
        ROWS, DEPTH = 128, 64 if channels_in > 192 else 32
        if triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS) < _MANY_PROGRAMS:
            ROWS = DEPTH = 64
        alpha, beta = (self._snake.alpha, self._snake.beta) if self._snake else (conv.bias, conv.bias)
        convolve[(triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)](
            x, conv.weight, conv.bias, out, to, alpha, beta, rows, read - self.reach, read, *self._numbers, columns,
            channels_in, conv.out_channels, to.shape[1], head, *map(int, self.flags), APPROXIMATE=x.is_cuda, ROWS=ROWS,
            COLUMNS=COLUMNS, DEPTH=min(DEPTH, channels_in & -channels_in), num_warps=4, num_stages=4,
        )  # fmt: skip


class RowDecoder(nn.ModuleList):
    """Replaces the list of code2wav's last modules, which it holds by the same names: as an iterable, one step.

    The last inputs of each convolution are a piece's context (batch, num_values).
    """

    def __init__(
        self, parts: nn.ModuleList, context: Callable[[], torch.Tensor | None], keep: Callable[[torch.Tensor], None]
    ) -> None:
        """`context` returns the one before a piece, None before the first; `keep` takes the one after it."""
        super().__init__(parts)
        self._context, self._keep = context, keep
        units = [part for part in self.modules() if isinstance(part, modules.Qwen3OmniMoeCode2WavDecoderResidualUnit)]
        ends, begins = {unit.conv2 for unit in units}, {unit.act1 for unit in units}
        # Convolutions alternate with activations.
        flat = [part for part in self.modules() if hasattr(part, "conv") or hasattr(part, "alpha")]
        self._convolutions = [
            _Convolution(module, snake, adds=module in ends, keeps=snake in begins)
            for module, snake in zip_longest(flat[::2], flat[1::2])
        ]
        self._sizes = [each.reach * each.conv.in_channels for each in self._convolutions]

    @staticmethod
    def suits(module: Any) -> bool:
        """True for code2wav on a CUDA device, in 16 bits, with numbers of channels that Triton's products have."""
        if not isinstance(module, modules.Qwen3OmniMoeCode2Wav):
            return False
        *weights, _ = [part.conv.weight for part in module.decoder.modules() if hasattr(part, "conv")]
        shapes = [size % 16 for weight in weights for size in weight.shape[:2]]
        return weights[0].is_cuda and torch.version.hip is None and weights[0].itemsize == 2 and not any(shapes)

    def __iter__(self) -> Iterator[Any]:
        yield self._decode

    def _decode(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return samples (batch, 1, num_samples) of hidden states (batch, channels, num_rows)."""
        context, rows = self._context(), hidden.mT
        kept = hidden.new_zeros((len(hidden), sum(self._sizes)))
        pasts, after = ((kept if each is None else each).split(self._sizes, dim=1) for each in (context, kept))

        def make_room(index: int, num_rows: int, channels: int) -> tuple[torch.Tensor, int]:
            """Return rows for the input of a convolution after its context, whose length is the second value."""
            following = self._convolutions[index] if index < len(pasts) else None
            head = following.reach if following and (following.pads or context is not None) else 0
            room = hidden.new_empty((len(hidden), head + num_rows, channels))
            if head:
                room[:, :head] = pasts[index].unflatten(1, (head, channels))
            return room, head

        x, head = make_room(0, *rows.shape[1:])
        x[:, head:] = rows
        out = x
        for index, each in enumerate(self._convolutions):
            if each.reach:
                after[index].copy_(x[:, -each.reach :].flatten(1))
            num_rows = (x.shape[1] - each.reach) * each.stride
            to, head = make_room(index + 1, num_rows, each.conv.out_channels)
            adds, keeps, _ = each.flags
            if keeps and not adds:
                out = x.new_empty((len(x), num_rows, each.conv.out_channels))
            each(x, out, to, head)
            x = to
        self._keep(kept)
        return x.mT
