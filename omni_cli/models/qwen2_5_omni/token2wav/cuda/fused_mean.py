"""The mean of the vocoder's residual blocks, whose last sums it makes as well, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_AT_ONCE = 1024


@triton.jit(do_not_specialize=["num_frames", "num_values", "rate"])
def _mean(  # type: ignore[no-untyped-def] # Triton's own types
    parts, bias, bounds, num_frames, out, num_values, rate, CHANNELS: tl.constexpr, SHARE: tl.constexpr,
    AT_ONCE: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    exists = at < num_values
    start = bounds + (at // CHANNELS).to(tl.int32) // rate
    sounds = tl.load(start + num_frames, mask=exists, other=0) > tl.load(start, mask=exists, other=0)
    total = tl.load(parts[0] + at, mask=sounds, other=0.0).to(tl.float32)
    for part in tl.static_range(1, len(parts)):
        total += tl.load(parts[part] + at, mask=sounds, other=0.0).to(tl.float32)
    total = total * SHARE + tl.load(bias + at % CHANNELS, mask=sounds, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=exists)


def fused_mean(
    parts: Sequence[torch.Tensor], bias: torch.Tensor, bounds: torch.Tensor, rate: int, *, share: float = 1.0
) -> torch.Tensor:
    """Do what `vocoder.plain_mean` does, for `parts` that are contiguous."""
    out = torch.empty_like(parts[0])
    _mean[(triton.cdiv(out.numel(), _AT_ONCE),)](
        tuple(parts), bias, bounds, bounds.shape[1], out, out.numel(), rate,
        CHANNELS=out.shape[1], SHARE=share, AT_ONCE=_AT_ONCE,
    )  # fmt: skip
    return out
