"""The DiT's Triton kernels. `Platform` has what they compute, in torch's operations.

cuBLAS takes two kernels for a product of few rows with its bias and GELU in TF32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# With up to this many rows `_linear_gelu` is faster than cuBLAS on an H200, where its tiles are the best of twelve.
MOST_ROWS = 384
_ROWS, _COLUMNS, _DEPTH = 64, 32, 64


@triton.jit
def _rows(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, block, part, head, seen, SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr
):  # fmt: skip
    """Load a block's queries, keys or values (ROWS, WIDTH), zeros where not `seen`; rotate head 0 except in values."""
    row = block.to(tl.int64) * SIZE + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    first = qkv + (row * 3 + part) * HEADS * WIDTH + head * WIDTH
    loaded = tl.load(first + column, mask=seen[:, None], other=0.0)
    if (head == 0) & (part < 2):
        other = tl.load(first + (column + WIDTH // 2) % WIDTH, mask=seen[:, None], other=0.0)
        other = tl.where(column < WIDTH // 2, -other, other)
        at = row * WIDTH + column
        rotated = loaded * tl.load(cos + at, mask=seen[:, None], other=0.0)
        rotated += other * tl.load(sin + at, mask=seen[:, None], other=0.0)
        loaded = rotated.to(loaded.dtype)
    return loaded


@triton.jit(do_not_specialize=["num_blocks"])
def _attend(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, block_diff, carried, out, num_blocks, scale, BACK: tl.constexpr, AHEAD: tl.constexpr,
    CARRIED: tl.constexpr, SECTIONS: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    location = tl.arange(0, ROWS)
    real = location < SIZE
    query = _rows(qkv, cos, sin, block, 0, head, real, SIZE, HEADS, WIDTH, ROWS)
    # The block itself first, so that each query has a key.
    highest = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for turn in tl.static_range(4):
        # The blocks at 0, 1 and -1, and then carried keys, which are the last section of `block_diff`.
        by = 2 if turn == 3 else turn - 3 * (turn // 2)
        if turn == 0 or (turn == 1 and AHEAD) or (turn == 2 and BACK) or (turn == 3 and CARRIED):
            distance = by if turn != 3 else -1
            length = SIZE
            if turn != 3:
                length = tl.where((block + by >= 0) & (block + by < num_blocks), SIZE, 0)
            away = block_diff + (block * SECTIONS + by + 1) * SIZE + location
            seen = tl.load(away, mask=location < length, other=2) == distance
            if turn == 3:
                at = carried + (block.to(tl.int64) * SIZE + location[:, None]) * 2 * HEADS * WIDTH + head * WIDTH
                at += tl.arange(0, WIDTH)[None, :]
                key = tl.load(at, mask=seen[:, None], other=0.0)
                value = tl.load(at + HEADS * WIDTH, mask=seen[:, None], other=0.0)
            else:
                key = _rows(qkv, cos, sin, block + by, 1, head, seen, SIZE, HEADS, WIDTH, ROWS)
                value = _rows(qkv, cos, sin, block + by, 2, head, seen, SIZE, HEADS, WIDTH, ROWS)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            score = tl.where(seen[None, :], score, -float("inf"))
            higher = tl.maximum(highest, tl.max(score, axis=1))
            share = tl.exp(score - higher[:, None])
            before = tl.exp(highest - higher)
            weight = weight * before + tl.sum(share, axis=1)
            total = total * before[:, None] + tl.dot(share.to(value.dtype), value, input_precision=PRECISION)
            highest = higher
    total = total / weight[:, None]
    row = block.to(tl.int64) * SIZE + location[:, None]
    at = row * HEADS * WIDTH + head * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real[:, None])


@triton.jit
def _rotate_keys(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, HEADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH // 2
    low, table = qkv + (row * 3 + 1) * HEADS * WIDTH + column, row * WIDTH + column
    high = low + WIDTH // 2
    one, other = tl.load(low, mask=real, other=0.0), tl.load(high, mask=real, other=0.0)
    cosine, sine = tl.load(cos + table, mask=real, other=0.0), tl.load(sin + table, mask=real, other=0.0)
    tl.store(low, (one * cosine - other * sine).to(one.dtype), mask=real)
    tl.store(high, (other * cosine + one * sine).to(one.dtype), mask=real)


def attend(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, block_diff: torch.Tensor, carried: torch.Tensor | None, *,
    back: bool, ahead: bool
) -> torch.Tensor:  # fmt: skip
    """Do what `Platform.attend` does in one kernel, and rotate the keys in another one if they are kept."""
    num_blocks, size, _, heads, width = qkv.shape
    out = qkv.new_empty(num_blocks, size, heads, width)
    exact = qkv.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    _attend[(num_blocks, heads)](
        qkv, cos, sin, block_diff, qkv if carried is None else carried, out, num_blocks, width**-0.5,
        BACK=back, AHEAD=ahead, CARRIED=carried is not None, SECTIONS=block_diff.shape[-1] // size, SIZE=size,
        HEADS=heads, WIDTH=width, ROWS=max(16, triton.next_power_of_2(size)), PRECISION="ieee" if exact else "tf32",
    )  # fmt: skip
    if carried is not None:
        columns = triton.next_power_of_2(width // 2)
        _rotate_keys[(num_blocks * size,)](qkv, cos, sin, HEADS=heads, WIDTH=width, COLUMNS=columns, num_warps=1)
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _linear_gelu(  # type: ignore[no-untyped-def] # Triton's own types
    inputs, weight, bias, out, num_rows, num_columns, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = (row < num_rows)[:, None]
    depth = tl.arange(0, DEPTH)[None, :]
    left, right = inputs + row[:, None] * WIDTH + depth, weight + column[:, None] * WIDTH + depth
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for _ in range(0, WIDTH, DEPTH):
        total = tl.dot(tl.load(left, mask=real, other=0.0), tl.trans(tl.load(right)), total, input_precision="tf32")
        left += DEPTH
        right += DEPTH
    total += tl.load(bias + column)[None, :]
    # The approximation by tanh: (1 + tanh(y)) / 2 is the sigmoid of 2 y, and y has a factor of sqrt(2 / pi).
    total *= tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    tl.store(out + row[:, None] * num_columns + column[None, :], total, mask=real)


def fits(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether `linear_gelu` computes this product, with the precision that torch's would have, and faster."""
    is_tf32 = rows.dtype == weight.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    columns, width = weight.shape
    return is_tf32 and len(rows) <= MOST_ROWS and not columns % _COLUMNS and not width % _DEPTH


def linear_gelu(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return (num_rows, num_columns) in TF32 from `rows` (num_rows, width) and `weight` (num_columns, width).

    All are contiguous float32; `bias` is (num_columns,).
    """
    (num_rows, width), num_columns = rows.shape, len(weight)
    out = rows.new_empty(num_rows, num_columns)
    _linear_gelu[(num_columns // _COLUMNS, triton.cdiv(num_rows, _ROWS))](
        rows, weight, bias, out, num_rows, num_columns, WIDTH=width, ROWS=_ROWS, COLUMNS=_COLUMNS, DEPTH=_DEPTH,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


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
    scaled = centred / tl.sqrt(tl.sum(centred * centred) / WIDTH + eps)
    scaled = scaled * tl.load(scale + column, mask=real, other=0.0) + tl.load(shift + column, mask=real, other=0.0)
    tl.store(normed + at, scaled, mask=real)


def add_and_norm(
    hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `Platform.add_and_norm` does, in one kernel."""
    width = hidden.shape[-1]
    summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    _add_and_norm[(hidden.numel() // width,)](
        hidden, branch, gate, scale, shift, summed, normed, eps, WIDTH=width, COLUMNS=triton.next_power_of_2(width)
    )
    return summed, normed


@triton.jit(do_not_specialize=["num_frames"])
def _advance(  # type: ignore[no-untyped-def] # Triton's own types
    predicted, locations, frames, slopes, times, packed, num_frames, scale, PART: tl.constexpr, GUIDED: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    location = tl.load(locations + row) * WIDTH + column
    slope = tl.load(predicted + location, mask=real, other=0.0).to(tl.float32)
    unguided = location
    if GUIDED:
        unguided = tl.load(locations + num_frames + row) * WIDTH + column
        slope += (slope - tl.load(predicted + unguided, mask=real, other=0.0).to(tl.float32)) * scale
    change = tl.load(times + 1) - tl.load(times)
    at = row * WIDTH + column
    value = tl.load(frames + at, mask=real, other=0.0)
    first, second, third = slopes + at, slopes + num_frames * WIDTH + at, slopes + 2 * num_frames * WIDTH + at
    if PART == 0:
        value += change * slope * (1 / 3)
        tl.store(first, slope, mask=real)
    if PART == 1:
        value += change * (slope - tl.load(first, mask=real, other=0.0) * (1 / 3))
        tl.store(second, slope, mask=real)
    if PART == 2:
        value += change * (tl.load(first, mask=real, other=0.0) - tl.load(second, mask=real, other=0.0) + slope)
        tl.store(third, slope, mask=real)
    if PART == 3:
        middle = tl.load(second, mask=real, other=0.0) + tl.load(third, mask=real, other=0.0)
        value += (tl.load(first, mask=real, other=0.0) + 3 * middle + slope) * change / 8
        tl.store(frames + at, value, mask=real)
    tl.store(packed + location, value, mask=real)
    if GUIDED:
        tl.store(packed + unguided, value, mask=real)


def advance(
    predicted: torch.Tensor, locations: torch.Tensor, frames: torch.Tensor, slopes: torch.Tensor, times: torch.Tensor,
    packed: torch.Tensor, part: int, guidance_scale: float
) -> None:  # fmt: skip
    """Do what `Platform.advance` does, in one kernel."""
    num_frames, width = frames.shape
    _advance[(num_frames,)](
        predicted, locations, frames, slopes, times, packed, num_frames, guidance_scale, PART=part,
        GUIDED=len(locations) == 2, WIDTH=width, COLUMNS=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
