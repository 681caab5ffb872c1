"""A causal convolution of rows, with what follows it, as one Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cosine(angle, APPROXIMATE: tl.constexpr):  # type: ignore[no-untyped-def] # Triton's own types
    """The GPU's own instruction, within 5e-7 of the cosine; Triton's interpreter has none."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.cos(angle)


# Compiled once for all values.
_NUMBERS = ["num_rows", "made", "read", "first", "step", "taps", "room", "head", "adds", "keeps", "snakes"]


@triton.jit(do_not_specialize=_NUMBERS)
def convolve(  # type: ignore[no-untyped-def] # Triton's own types
    x, weight, bias, out, to, alpha, beta, num_rows, made, read, first, step, taps, tap_stride, row_stride, columns,
    channels_in, channels, room, head, adds, keeps, snakes, APPROXIMATE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Make `num_rows` rows of `columns`, `made` per request, of its `read` rows in `x`, each of `channels_in`.

    A row sees `taps` rows, `step` apart. Its sum with what `out` has, if it adds, is kept there, if it keeps, and goes
    to the rows from `head` on of the `room` per request, activated.
    """
    programs = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // programs * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % programs * COLUMNS + tl.arange(0, COLUMNS)
    has_column, exists = column < columns, (row < num_rows)[:, None] & (column < columns)[None]
    row, depth = tl.minimum(row, num_rows - 1), tl.arange(0, DEPTH)
    x += (row // made * read + row % made + first)[:, None] * channels_in + depth[None]
    weight += depth[:, None] * row_stride + column[None]
    total, parts = tl.zeros([ROWS, COLUMNS], tl.float32), channels_in // DEPTH
    for part in range(taps * parts):
        tap, begin = part // parts, part % parts * DEPTH
        rows = tl.load(x + (tap * step * channels_in + begin))
        weights = tl.load(weight + (tap * tap_stride + begin * row_stride), mask=has_column[None], other=0.0)
        total = tl.dot(rows, weights, total, input_precision="ieee")
    at, channel = row[:, None] * columns + column[None], column % channels
    total += tl.load(bias + channel, mask=has_column, other=0.0).to(tl.float32)[None]
    if adds != 0:
        total += tl.load(out + at, mask=exists, other=0.0).to(tl.float32)
    if keeps != 0:
        tl.store(out + at, total.to(out.dtype.element_ty), mask=exists)
    if snakes != 0:  # sin(a)^2 is (1 - cos(2a)) / 2
        speed = 2 * tl.exp(tl.load(alpha + channel, mask=has_column, other=0.0).to(tl.float32))[None]
        size = 0.5 / (tl.exp(tl.load(beta + channel, mask=has_column, other=0.0).to(tl.float32)) + 1e-9)[None]
        total += size - size * cosine(speed * total, APPROXIMATE)
    to += ((row // made * room + head) * channels + row % made * columns)[:, None] + column[None]
    tl.store(to, total.to(to.dtype.element_ty), mask=exists)
