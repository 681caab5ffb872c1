"""The vocoder's anti-aliased activation over packed sequences: one kernel for upsampling and snake, one for
downsampling."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
# Taps of each filter.
TAPS = 12


@triton.jit
def _sequence(starts, ends, frame, mask):  # type: ignore[no-untyped-def] # Triton's own types
    start = tl.load(starts + frame, mask=mask, other=0)
    end = tl.load(ends + frame, mask=mask, other=0)
    return start, end, mask & (end > start)


@triton.jit
def _raise(  # type: ignore[no-untyped-def] # Triton's own types
    x, out, alpha, beta, filters, starts, ends, num_samples, rate, BLOCK: tl.constexpr
):
    """Upsample by two and apply snake."""
    channel = tl.program_id(1)
    row = channel.to(tl.int64) * num_samples
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sample = at // 2
    start, end, inside = _sequence(starts, ends, sample // rate, sample < num_samples)
    start, last = start * rate, (end - start) * rate - 1
    odd = at & 1
    newest = sample - start + 2 + odd
    value = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(6):
        index = tl.minimum(tl.maximum(newest - k, 0), last)
        weight = tl.where(odd == 1, tl.load(filters + 2 * k), tl.load(filters + 2 * k + 1))
        value += weight * tl.load(x + row + start + index, mask=inside, other=0.0).to(tl.float32)
    value *= 2.0
    wave = tl.sin(value * tl.exp(tl.load(alpha + channel).to(tl.float32)))
    value += wave * wave / (tl.exp(tl.load(beta + channel).to(tl.float32)) + 1e-9)
    tl.store(out + 2 * row + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _lower(  # type: ignore[no-untyped-def] # Triton's own types
    fine, out, filters, starts, ends, num_samples, rate, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Downsample by two; zeros outside sequences."""
    row = tl.program_id(1).to(tl.int64) * num_samples
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start, end, inside = _sequence(starts, ends, at // rate, at < num_samples)
    start, last = start * rate, 2 * (end - start) * rate - 1
    first = 2 * (at - start) - (TAPS // 2 - 1)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        index = tl.minimum(tl.maximum(first + tap, 0), last)
        given = tl.load(fine + 2 * (row + start) + index, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(filters + tap) * given
    tl.store(out + row + at, total.to(out.dtype.element_ty), mask=at < num_samples)


def fused_activation(module: torch.nn.Module, x: torch.Tensor, bounds: torch.Tensor, rate: int) -> torch.Tensor:
    """Apply `module` to each sequence in `x` (1, channels, num_samples) separately; zeros in between.

    `bounds` (2, num_frames) int32: the first frame and the end of each frame's sequence, equal for frames outside;
    `rate` samples per frame.
    """
    x = x.contiguous()
    _, channels, num_samples = x.shape
    fine, out = x.new_empty(channels, 2 * num_samples), torch.empty_like(x)
    snake, up, down = module.act, module.upsample.filter, module.downsample.filter
    starts, ends = bounds
    _raise[(triton.cdiv(2 * num_samples, BLOCK), channels)](
        x, fine, snake.alpha, snake.beta, up, starts, ends, num_samples, rate, BLOCK=BLOCK
    )
    _lower[(triton.cdiv(num_samples, BLOCK), channels)](
        fine, out, down, starts, ends, num_samples, rate, TAPS=TAPS, BLOCK=BLOCK
    )
    return out
