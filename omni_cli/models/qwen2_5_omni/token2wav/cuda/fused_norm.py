"""The sum after a branch of a layer and the norm before the next branch, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_and_norm(  # type: ignore[no-untyped-def] # Triton's own types
    hidden, branch, gate, scale, shift, summed, normed, eps, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    total = tl.load(branch + at, mask=real, other=0.0).to(tl.float32) * tl.load(gate + column, mask=real, other=0.0)
    total += tl.load(hidden + at, mask=real, other=0.0)
    tl.store(summed + at, total, mask=real)
    centred = tl.where(real, total - tl.sum(total) / WIDTH, 0.0)
    made = centred / tl.sqrt(tl.sum(centred * centred) / WIDTH + eps)
    made = made * tl.load(scale + column, mask=real, other=0.0) + tl.load(shift + column, mask=real, other=0.0)
    tl.store(normed + at, made, mask=real)


def add_and_norm(
    hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `hidden + gate * branch`, and that normed along its last dimension, scaled and shifted.

    `hidden` (..., width) float32 and `branch` of that shape are contiguous, the others (width,) float32.
    """
    width = hidden.shape[-1]
    summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    _add_and_norm[(hidden.numel() // width,)](
        hidden, branch, gate, scale, shift, summed, normed, eps, WIDTH=width, COLUMNS=triton.next_power_of_2(width)
    )
    return summed, normed
