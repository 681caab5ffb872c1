"""The vocoder's anti-aliased activation over packed sequences: upsampling, snake and downsampling in one kernel."""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

# Samples that one thread makes, one after another; its filters begin 6 samples earlier, so long runs have less work.
# Short ones keep more threads busy, up to about as many as a large GPU runs at once.
_SHORTEST_RUN, _LONGEST_RUN = 5, 32
_THREADS = 1 << 18
# Runs times channels of a program.
_MANY, _FEW = (1, 128), (4, 32)


@triton.jit
def _row(sample, num_samples, phases):  # type: ignore[no-untyped-def] # Triton's own types
    return (sample % phases) * (num_samples // phases) + sample // phases


@triton.jit
def _next_row(row, num_samples, phases):  # type: ignore[no-untyped-def]
    """Return the row of the sample after that of `row`."""
    length = num_samples // phases
    ahead = row + length
    return tl.where(ahead < num_samples, ahead, ahead - num_samples + 1)


@triton.jit
def _sample(x, bias, row, channels, mask):  # type: ignore[no-untyped-def]
    return tl.load(x + row.to(tl.int64) * channels, mask=mask, other=0.0).to(tl.float32) + bias


@triton.jit
def _snake(value, speed, weight):  # type: ignore[no-untyped-def]
    """`value + weight * sin(pi * speed * value) ** 2`; the polynomial is within 4e-9 of the sine of half a turn."""
    turns = value * speed
    turns -= tl.floor(turns + 0.5)
    square = turns * turns
    sine = 0.0772201269865036
    sine = sine * square - 0.5980451703071594
    sine = sine * square + 2.5500314235687256
    sine = sine * square - 5.1677069664001465
    sine = (sine * square + 3.141592502593994) * turns
    return value + weight * sine * sine


@triton.jit
def _even(x1, x2, x3, x4, x5, x6, UP: tl.constexpr):  # type: ignore[no-untyped-def]
    return 2 * (UP[11] * x1 + UP[9] * x2 + UP[7] * x3 + UP[5] * x4 + UP[3] * x5 + UP[1] * x6)


@triton.jit
def _odd(x1, x2, x3, x4, x5, x6, UP: tl.constexpr):  # type: ignore[no-untyped-def]
    return 2 * (UP[10] * x1 + UP[8] * x2 + UP[6] * x3 + UP[4] * x4 + UP[2] * x5 + UP[0] * x6)


@triton.jit
def _next(  # type: ignore[no-untyped-def]
    x, bias, row, position, last, num_samples, phases, channels, sounds
):  # fmt: skip
    """Return the row of the sample at `position`, the next one after `row`, and its value."""
    row = tl.where((position > 0) & (position <= last), _next_row(row, num_samples, phases), row)
    return row, _sample(x, bias, row, channels, sounds)


@triton.jit
def _six(  # type: ignore[no-untyped-def]
    x, bias, row, position, last, num_samples, phases, channels, sounds
):  # fmt: skip
    """Return the row of the last one of six samples from `position` on, and their values."""
    row, n1 = _next(x, bias, row, position, last, num_samples, phases, channels, sounds)
    row, n2 = _next(x, bias, row, position + 1, last, num_samples, phases, channels, sounds)
    row, n3 = _next(x, bias, row, position + 2, last, num_samples, phases, channels, sounds)
    row, n4 = _next(x, bias, row, position + 3, last, num_samples, phases, channels, sounds)
    row, n5 = _next(x, bias, row, position + 4, last, num_samples, phases, channels, sounds)
    row, n6 = _next(x, bias, row, position + 5, last, num_samples, phases, channels, sounds)
    return row, n1, n2, n3, n4, n5, n6


@triton.jit
def _outside(  # type: ignore[no-untyped-def]
    x, bias, start, last, num_samples, phases, channels, sounds, speed, weight, UP: tl.constexpr
):  # fmt: skip
    """Return the first value at the higher rate, which continues before a sequence, and the last one, after it."""
    head = _sample(x, bias, _row(start, num_samples, phases), channels, sounds)
    second = _sample(x, bias, _row(start + tl.minimum(1, last), num_samples, phases), channels, sounds)
    third = _sample(x, bias, _row(start + tl.minimum(2, last), num_samples, phases), channels, sounds)
    before = _snake(_even(head, head, head, head, second, third, UP), speed, weight)
    tail = _sample(x, bias, _row(start + last, num_samples, phases), channels, sounds)
    second = _sample(x, bias, _row(start + tl.maximum(last - 1, 0), num_samples, phases), channels, sounds)
    third = _sample(x, bias, _row(start + tl.maximum(last - 2, 0), num_samples, phases), channels, sounds)
    return before, _snake(_odd(third, second, tail, tail, tail, tail, UP), speed, weight)


@triton.jit
def _values(  # type: ignore[no-untyped-def]
    x0, x1, x2, x3, x4, x5, x6, position, last, before, after, speed, weight, UP: tl.constexpr
):  # fmt: skip
    """Return both values at the higher rate."""
    outside = tl.where(position < 0, before, after)
    inside = (position >= 0) & (position <= last)
    even = tl.where(inside, _snake(_even(x0, x1, x2, x3, x4, x5, UP), speed, weight), outside)
    return even, tl.where(inside, _snake(_odd(x1, x2, x3, x4, x5, x6, UP), speed, weight), outside)


@triton.jit
def _made(  # type: ignore[no-untyped-def]
    e1, e2, e3, e4, e5, e6, o0, o1, o2, o3, o4, o5, sounds, DOWN: tl.constexpr
):  # fmt: skip
    made = DOWN[1] * e1 + DOWN[3] * e2 + DOWN[5] * e3 + DOWN[7] * e4 + DOWN[9] * e5 + DOWN[11] * e6
    made += DOWN[0] * o0 + DOWN[2] * o1 + DOWN[4] * o2 + DOWN[6] * o3 + DOWN[8] * o4 + DOWN[10] * o5
    return tl.where(sounds, made, 0.0)


@triton.jit
def _store(out, made, row, num_samples, phases, channels, mask):  # type: ignore[no-untyped-def]
    """Store a sample; return the next one's row."""
    tl.store(out + row.to(tl.int64) * channels, made.to(out.dtype.element_ty), mask=mask)
    return _next_row(row, num_samples, phases)


@triton.jit
def _zeros(RUNS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A window of six. Each is a value of its own: Triton takes names of one value for constants in a loop."""
    shape: tl.constexpr = [RUNS, CHANNELS]
    return (
        tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32),
        tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32), tl.zeros(shape, tl.float32),
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_samples", "rate", "phases_in", "phases_out", "run"])
def _activate(  # type: ignore[no-untyped-def]
    x, out, biases, speeds, weights, starts, ends, num_samples, rate, channels, phases_in, phases_out, run,
    UP: tl.constexpr, DOWN: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    has_channel = channel < channels
    first = (tl.program_id(0) * RUNS + tl.arange(0, RUNS)[:, None]) * run
    frame = first // rate
    start = tl.load(starts + frame, mask=first < num_samples, other=0)
    end = tl.load(ends + frame, mask=first < num_samples, other=0)
    stored = has_channel & (first < num_samples)
    sounds = has_channel & (end > start)
    start, last = start * rate, (end - start) * rate - 1
    speed = tl.load(speeds + channel, mask=has_channel, other=0.0)
    weight = tl.load(weights + channel, mask=has_channel, other=0.0)
    bias = tl.load(biases + channel, mask=has_channel, other=0.0).to(tl.float32)
    x += channel
    out += channel
    begin = first - start
    before, after = tl.zeros([RUNS, CHANNELS], tl.float32), tl.zeros([RUNS, CHANNELS], tl.float32)
    if tl.max(((begin < 3) | (begin + run + 2 > last)).to(tl.int32)) > 0:
        before, after = _outside(x, bias, start, last, num_samples, phases_in, channels, sounds, speed, weight, UP)
    # Windows, oldest first: of samples around `position`, and of both values at the higher rate up to there. A sample
    # outside its sequence has the value of the nearest one inside.
    x1, x2, x3, x4, x5, x6 = _zeros(RUNS, CHANNELS)
    _, e1, e2, e3, e4, e5 = _zeros(RUNS, CHANNELS)
    o1, o2, o3, o4, o5, o6 = _zeros(RUNS, CHANNELS)
    position = begin - 9
    stop = begin + run + 3
    row = _row(start + tl.minimum(tl.maximum(position + 2, 0), last), num_samples, phases_in)
    out_row = _row(first, num_samples, phases_out)
    # Six steps at once, whose loads do not wait for each other. The first six only fill the first window, the next six
    # the others.
    for six in range((run + 17) // 6):
        row, n1, n2, n3, n4, n5, n6 = _six(x, bias, row, position + 3, last, num_samples, phases_in, channels, sounds)
        if six >= 1:
            f1, p1 = _values(x1, x2, x3, x4, x5, x6, n1, position, last, before, after, speed, weight, UP)
            f2, p2 = _values(x2, x3, x4, x5, x6, n1, n2, position + 1, last, before, after, speed, weight, UP)
            f3, p3 = _values(x3, x4, x5, x6, n1, n2, n3, position + 2, last, before, after, speed, weight, UP)
            f4, p4 = _values(x4, x5, x6, n1, n2, n3, n4, position + 3, last, before, after, speed, weight, UP)
            f5, p5 = _values(x5, x6, n1, n2, n3, n4, n5, position + 4, last, before, after, speed, weight, UP)
            f6, p6 = _values(x6, n1, n2, n3, n4, n5, n6, position + 5, last, before, after, speed, weight, UP)
            if six >= 2:
                made = _made(e1, e2, e3, e4, e5, f1, o1, o2, o3, o4, o5, o6, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored)
                made = _made(e2, e3, e4, e5, f1, f2, o2, o3, o4, o5, o6, p1, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored & (position + 1 < stop))
                made = _made(e3, e4, e5, f1, f2, f3, o3, o4, o5, o6, p1, p2, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored & (position + 2 < stop))
                made = _made(e4, e5, f1, f2, f3, f4, o4, o5, o6, p1, p2, p3, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored & (position + 3 < stop))
                made = _made(e5, f1, f2, f3, f4, f5, o5, o6, p1, p2, p3, p4, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored & (position + 4 < stop))
                made = _made(f1, f2, f3, f4, f5, f6, o6, p1, p2, p3, p4, p5, sounds, DOWN)
                out_row = _store(out, made, out_row, num_samples, phases_out, channels, stored & (position + 5 < stop))
            e1, e2, e3, e4, e5 = f2, f3, f4, f5, f6
            o1, o2, o3, o4, o5, o6 = p1, p2, p3, p4, p5, p6
        x1, x2, x3, x4, x5, x6 = n1, n2, n3, n4, n5, n6
        position += 6


class FusedActivation:
    """transformers' `Qwen2_5OmniAntiAliasedActivation1d` over packed sequences."""

    def __init__(self, module: torch.nn.Module) -> None:
        snake = module.act
        self._speeds = snake.alpha.float().exp() / math.pi
        self._weights = 1 / (snake.beta.float().exp() + snake.no_div_by_zero)
        self._up, self._down = (tuple(part.filter.flatten().tolist()) for part in (module.upsample, module.downsample))

    def __call__(
        self, x: torch.Tensor, bounds: torch.Tensor, rate: int,
        *, bias: torch.Tensor, phases_in: int = 1, phases_out: int = 1,
    ) -> torch.Tensor:  # fmt: skip
        """Activate each sequence in `x + bias`, (num_samples, channels), separately; zeros in between.

        `bounds` (2, num_frames) int32: the first frame and the end of each frame's sequence, equal for frames outside;
        `rate` samples per frame. With `phases` of p the samples lie in the order 0, p, 2p, ..., 1, p + 1, ...
        """
        num_samples, channels = x.shape
        out = torch.empty_like(x)
        run = _run_of(rate, min(max(num_samples * channels // _THREADS, _SHORTEST_RUN), _LONGEST_RUN))
        runs, at_once = _MANY if channels >= _MANY[1] else _FEW
        starts, ends = bounds
        _activate[(triton.cdiv(num_samples, run * runs), triton.cdiv(channels, at_once))](
            x, out, bias, self._speeds, self._weights, starts, ends, num_samples, rate, channels,
            phases_in, phases_out, run, UP=self._up, DOWN=self._down, RUNS=runs, CHANNELS=at_once,
        )  # fmt: skip
        return out


@functools.cache
def _run_of(rate: int, longest: int) -> int:
    """Return the longest run up to `longest` of which a frame is made."""
    return max(length for length in range(1, longest + 1) if rate % length == 0)
