# ruff: noqa: RUF005 -- in a kernel tuples can be joined, but not unpacked
"""The vocoder's Triton kernels over packed sequences: its anti-aliased activation, and the mean of residual blocks.

The activation is upsampling, snake and downsampling in one kernel. Snake, `y + sin(a * y)^2 / b`, is `y - cos(2 * a *
y) / (2 * b) + 1 / (2 * b)`; the filter after it keeps the constant, which is added at the lower rate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl

from omni_cli.models.codec.row_kernel import cosine
from omni_cli.models.qwen2_5_omni.token2wav.cuda import ALIGNMENT

# A thread makes a run of samples, one after another. Its filters begin 12 samples earlier, so long runs have less work;
# short ones keep more threads busy.
_LONGEST_RUN = 120
_MOST_RUNS = 1 << 16
# Runs times channels of a program. Threads make runs of two channels, or of four if they are long.
_AT_ONCE = 128
_SHORT_RUN = 60
# Values of a program of the mean.
_MEAN_VALUES = 1024


@triton.jit
def _row(sample, num_samples, phases):  # type: ignore[no-untyped-def]
    return (sample % phases) * (num_samples // phases) + sample // phases


@triton.jit
def _next_row(row, num_samples, phases):  # type: ignore[no-untyped-def]
    """Return the row of the sample after that of `row`."""
    ahead = row + num_samples // phases
    return tl.where(ahead < num_samples, ahead, ahead - num_samples + 1)


@triton.jit
def _load(x, bias, row, channels, mask):  # type: ignore[no-untyped-def]
    return tl.load(x + row.to(tl.int64) * channels, mask=mask, other=0.0).to(tl.float32) + bias


@triton.jit
def _store(to, value, row, channels, mask):  # type: ignore[no-untyped-def]
    tl.store(to + row.to(tl.int64) * channels, value.to(to.dtype.element_ty), mask=mask)


@triton.jit
def _filter(  # type: ignore[no-untyped-def]
    total, values, first: tl.constexpr, weights: tl.constexpr, part: tl.constexpr
):  # fmt: skip
    """Return `total` and six weighted values from the `first` on."""
    for tap in tl.static_range(6):
        total += weights[part][tap] * values[first + tap]
    return total


@triton.jit
def _snake(value, speed, weight, APPROXIMATE: tl.constexpr):  # type: ignore[no-untyped-def]
    return value - weight * cosine(speed * value, APPROXIMATE)


@triton.jit
def _zeros(RUNS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A window of six. Each is a value of its own: Triton takes names of one value for constants in a loop."""
    shape: tl.constexpr = [RUNS, CHANNELS]
    return (
        tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32),
        tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32),
    )  # fmt: skip


@triton.jit
def _outside(  # type: ignore[no-untyped-def]
    x, bias, start, last, num_samples, phases, channels, mask, speed, weight,
    UP: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Return the first value at the higher rate, which continues before a sequence, and the last one, after it."""
    first = _load(x, bias, _row(start, num_samples, phases), channels, mask)
    row = _row(start + tl.minimum(1, last), num_samples, phases)
    second = _load(x, bias, row, channels, mask)
    row = _row(start + tl.minimum(2, last), num_samples, phases)
    third = _load(x, bias, row, channels, mask)
    before = _filter(0.0, (first, first, first, first, second, third), 0, UP, 0)
    first = _load(x, bias, _row(start + last, num_samples, phases), channels, mask)
    row = _row(start + tl.maximum(last - 1, 0), num_samples, phases)
    second = _load(x, bias, row, channels, mask)
    row = _row(start + tl.maximum(last - 2, 0), num_samples, phases)
    third = _load(x, bias, row, channels, mask)
    after = _filter(0.0, (third, second, first, first, first, first), 0, UP, 1)
    return _snake(before, speed, weight, APPROXIMATE), _snake(after, speed, weight, APPROXIMATE)


@triton.jit
def _with_six_samples(  # type: ignore[no-untyped-def]
    samples, x, bias, row, position, last, num_samples, phases, channels, mask, ENDS: tl.constexpr
):  # fmt: skip
    """Return `samples` with those from `position` on, and the row of the last."""
    for step in tl.static_range(6):
        ahead = _next_row(row, num_samples, phases)
        if ENDS:  # a sample outside its sequence has the value of the nearest one inside
            ahead = tl.where((position + step > 0) & (position + step <= last), ahead, row)
        row = ahead
        samples = samples + (_load(x, bias, row, channels, mask),)
    return samples, row


@triton.jit
def _with_six_values(  # type: ignore[no-untyped-def]
    evens, odds, samples, position, last, before, after, speed, weight, UP: tl.constexpr,
    APPROXIMATE: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Return `evens` and `odds` with the values of the samples from `position` on at the higher rate."""
    for step in tl.static_range(6):
        even = _snake(_filter(0.0, samples, step, UP, 0), speed, weight, APPROXIMATE)
        odd = _snake(_filter(0.0, samples, step + 1, UP, 1), speed, weight, APPROXIMATE)
        if ENDS:
            inside = (position + step >= 0) & (position + step <= last)
            outside = tl.where(position + step < 0, before, after)
            even, odd = tl.where(inside, even, outside), tl.where(inside, odd, outside)
        evens, odds = evens + (even,), odds + (odd,)
    return evens, odds


@triton.jit
def _store_six(  # type: ignore[no-untyped-def]
    out, evens, odds, weight, row, position, start, last, num_samples, phases, channels, mask, DOWN: tl.constexpr,
    ENDS: tl.constexpr,
):  # fmt: skip
    """Store the samples from `position` on; return the row of the one after them."""
    for step in tl.static_range(6):
        sample = _filter(_filter(weight, evens, step, DOWN, 0), odds, step, DOWN, 1)
        stored = mask
        if ENDS:
            sample = tl.where(position + step <= last, sample, 0.0)
            stored = mask & (start + position + step < num_samples)
        _store(out, sample, row, channels, stored)
        row = _next_row(row, num_samples, phases)
    return row


@triton.jit
def _make_runs(  # type: ignore[no-untyped-def]
    x, out, bias, speed, weight, first, start, last, mask, num_samples, channels, phases_in, phases_out, run,
    UP: tl.constexpr, DOWN: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
    APPROXIMATE: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Make the runs from the samples `first` on; without `ENDS`, of sequences that reach well beyond them."""
    begin = first - start
    sounds, nearest = mask, begin - 7
    before, after = tl.zeros([RUNS, CHANNELS], tl.float32), tl.zeros([RUNS, CHANNELS], tl.float32)
    if ENDS:
        sounds, nearest = mask & (last >= 0), tl.minimum(tl.maximum(nearest, 0), last)
        before, after = _outside(
            x, bias, start, last, num_samples, phases_in, channels, sounds, speed, weight, UP, APPROXIMATE
        )
    # Windows, oldest first: of samples around `position`, and of the values at the higher rate up to there, each two
    # of which are an even and an odd one.
    samples, evens, odds = _zeros(RUNS, CHANNELS), _zeros(RUNS, CHANNELS), _zeros(RUNS, CHANNELS)
    evens = (evens[0], evens[1], evens[2], evens[3], evens[4])
    position = begin - 9
    row = _row(start + nearest, num_samples, phases_in)
    to = _row(first, num_samples, phases_out)
    # Six steps at once, whose loads do not wait for each other. The first six only fill the first window, the next six
    # the others.
    for six in range(run // 6 + 2):
        samples, row = _with_six_samples(
            samples, x, bias, row, position + 3, last, num_samples, phases_in, channels, sounds, ENDS
        )
        if six >= 1:
            evens, odds = _with_six_values(
                evens, odds, samples, position, last, before, after, speed, weight, UP, APPROXIMATE, ENDS
            )
            if six >= 2:
                to = _store_six(
                    out, evens, odds, weight, to, position - 3, start, last, num_samples, phases_out, channels, mask,
                    DOWN, ENDS,
                )  # fmt: skip
            evens = (evens[6], evens[7], evens[8], evens[9], evens[10])
            odds = (odds[6], odds[7], odds[8], odds[9], odds[10], odds[11])
        samples = (samples[6], samples[7], samples[8], samples[9], samples[10], samples[11])
        position += 6


@triton.jit(do_not_specialize=["num_frames", "num_samples", "rate", "phases_in", "phases_out", "run"])
def _activate(  # type: ignore[no-untyped-def]
    x, out, biases, speeds, weights, bounds, num_frames, num_samples, rate, phases_in, phases_out, run,
    UP: tl.constexpr, DOWN: tl.constexpr, channels: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    has_channel = channel < channels
    first = (tl.program_id(0) * RUNS + tl.arange(0, RUNS)[:, None]) * run
    exists = first < num_samples
    start = tl.load(bounds + first // rate, mask=exists, other=0)
    last = (tl.load(bounds + num_frames + first // rate, mask=exists, other=0) - start) * rate - 1
    start = tl.where(last >= 0, start * rate, first)
    speed = tl.load(speeds + channel, mask=has_channel, other=0.0)
    weight = tl.load(weights + channel, mask=has_channel, other=0.0)
    bias = tl.load(biases + channel, mask=has_channel, other=0.0).to(tl.float32)
    x += channel
    out += channel
    near_ends = (first - start < 7) | (first - start + run + 5 > last)
    if tl.max(near_ends.to(tl.int32)) > 0:
        _make_runs(
            x, out, bias, speed, weight, first, start, last, has_channel, num_samples, channels,
            phases_in, phases_out, run, UP, DOWN, RUNS, CHANNELS, APPROXIMATE, True,
        )  # fmt: skip
    else:
        _make_runs(
            x, out, bias, speed, weight, first, start, last, has_channel, num_samples, channels,
            phases_in, phases_out, run, UP, DOWN, RUNS, CHANNELS, APPROXIMATE, False,
        )  # fmt: skip


class FusedActivation:
    """transformers' `Qwen2_5OmniAntiAliasedActivation1d` over packed sequences."""

    def __init__(self, module: torch.nn.Module) -> None:
        snake = module.act
        self._speeds = 2 * snake.alpha.float().exp()
        self._weights = 0.5 / (snake.beta.float().exp() + snake.no_div_by_zero)
        up, down = (part.filter.flatten().tolist() for part in (module.upsample, module.downsample))
        raised = [2 * weight for weight in reversed(up)]
        # Of values at even places of the higher rate, and of those at odd ones.
        self._up = tuple(raised[::2]), tuple(raised[1::2])
        self._down = tuple(down[1::2]), tuple(down[::2])

    def __call__(
        self, x: torch.Tensor, bounds: torch.Tensor, rate: int,
        *, bias: torch.Tensor, phases_in: int = 1, phases_out: int = 1,
    ) -> torch.Tensor:  # fmt: skip
        """Activate each sequence in `x + bias`, (num_samples, channels), separately; zeros in between.

        `bounds` (2, num_frames) int32: the first frame, a multiple of `ALIGNMENT`, and the end of each frame's
        sequence, equal for frames outside; `rate` samples per frame. With `phases` of p the samples lie in the order
        0, p, 2p, ..., 1, p + 1, ...
        """
        num_samples, channels = x.shape
        out = torch.empty_like(x)
        run = _get_run(rate, num_samples * channels // _MOST_RUNS)
        settings = self._settings(channels, run, is_cuda=x.is_cuda)
        grid = triton.cdiv(num_samples, run * settings["RUNS"]), triton.cdiv(channels, settings["CHANNELS"])
        _activate[grid](
            x, out, bias, self._speeds, self._weights, bounds, bounds.shape[1], num_samples, rate, phases_in,
            phases_out, run, **settings,
        )  # fmt: skip
        return out

    def compile(self, bias: torch.Tensor, rate: int, run: int) -> None:
        """Compile the kernel of calls with such runs; `bias` and `rate` are as in a call."""
        _activate.warmup(
            bias.dtype, bias.dtype, bias.dtype, torch.float32, torch.float32, torch.int32, 0, 0, rate, 1, 1, run,
            grid=(1,), **self._settings(len(bias), run, is_cuda=bias.is_cuda),
        )  # fmt: skip

    def _settings(self, channels: int, run: int, *, is_cuda: bool) -> dict[str, Any]:
        at_once = min(max(channels & -channels, 8), _AT_ONCE)
        return {
            "UP": self._up, "DOWN": self._down, "channels": channels, "RUNS": _AT_ONCE // at_once,
            "CHANNELS": at_once, "APPROXIMATE": is_cuda, "num_warps": 1 if run > _SHORT_RUN else 2,
        }  # fmt: skip


def compile_ahead(activations: Iterable[tuple[FusedActivation, torch.Tensor, int]]) -> None:
    """Compile the kernels of calls of any length, for activations with the `bias` and the `rate` of their calls.

    Several at a time: one by one, those of the real vocoder take half a minute.
    """
    with ThreadPoolExecutor() as threads:
        futures = [
            threads.submit(activation.compile, bias, rate, run)
            for activation, bias, rate in activations
            for run in {_get_run(rate, _SHORT_RUN), _get_run(rate, _LONGEST_RUN)}
        ]
        for future in futures:
            future.result()


@functools.cache
def _get_run(rate: int, longest: int) -> int:
    """Return the longest run, up to `longest`, of which `ALIGNMENT` frames are made; a multiple of six."""
    longest = max(min(longest, _LONGEST_RUN), 6)
    return max(run for run in range(6, longest + 1, 6) if ALIGNMENT * rate % run == 0)


@triton.jit(do_not_specialize=["num_frames", "num_values", "rate"])
def _mean(  # type: ignore[no-untyped-def] # Triton's own types
    parts, bias, bounds, num_frames, out, num_values, rate, CHANNELS: tl.constexpr, SHARE: tl.constexpr,
    VALUES: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
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
    """Return `share` of the sum of `parts`, plus `bias`; zeros between the sequences.

    `parts` (num_samples, channels) are contiguous; `bounds` and `rate` are as in `FusedActivation.__call__`.
    """
    out = torch.empty_like(parts[0])
    _mean[(triton.cdiv(out.numel(), _MEAN_VALUES),)](
        tuple(parts), bias, bounds, bounds.shape[1], out, out.numel(), rate,
        CHANNELS=out.shape[1], SHARE=share, VALUES=_MEAN_VALUES,
    )  # fmt: skip
    return out
