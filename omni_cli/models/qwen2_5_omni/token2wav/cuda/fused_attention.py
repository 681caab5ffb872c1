"""Attention of packed blocks to themselves and their neighbours in one kernel, including the first head's rotation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rows(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, block, part, head, seen, SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr
):  # fmt: skip
    """Load a block's queries, keys or values (ROWS, WIDTH), zeros where not `seen`; rotate head 0 except in values."""
    row = block.to(tl.int64) * SIZE + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    first = qkv + (row * 3 + part) * HEADS * WIDTH + head * WIDTH
    given = tl.load(first + column, mask=seen[:, None], other=0.0)
    if (head == 0) & (part < 2):
        other = tl.load(first + (column + WIDTH // 2) % WIDTH, mask=seen[:, None], other=0.0)
        other = tl.where(column < WIDTH // 2, -other, other)
        at = row * WIDTH + column
        turned = given * tl.load(cos + at, mask=seen[:, None], other=0.0)
        turned += other * tl.load(sin + at, mask=seen[:, None], other=0.0)
        given = turned.to(given.dtype)
    return given


@triton.jit(do_not_specialize=["num_blocks"])
def _attend(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, block_diff, carried, out, num_blocks, scale, BACK: tl.constexpr, AHEAD: tl.constexpr,
    CARRIED: tl.constexpr, SECTIONS: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, ROWS)
    real = place < SIZE
    query = _rows(qkv, cos, sin, block, 0, head, real, SIZE, HEADS, WIDTH, ROWS)
    # The block itself first, so that each query has a key.
    highest = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for turn in tl.static_range(4):
        # 0, 1 and -1; for carried ones, the last section of `block_diff`.
        by = 2 if turn == 3 else turn - 3 * (turn // 2)
        if turn == 0 or (turn == 1 and AHEAD) or (turn == 2 and BACK) or (turn == 3 and CARRIED):
            distance = by if turn != 3 else -1
            length = SIZE
            if turn != 3:
                length = tl.where((block + by >= 0) & (block + by < num_blocks), SIZE, 0)
            away = block_diff + (block * SECTIONS + by + 1) * SIZE + place
            seen = tl.load(away, mask=place < length, other=2) == distance
            if turn == 3:
                at = carried + (block.to(tl.int64) * SIZE + place[:, None]) * 2 * HEADS * WIDTH + head * WIDTH
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
    row = block.to(tl.int64) * SIZE + place[:, None]
    at = row * HEADS * WIDTH + head * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real[:, None])


def fused_attention(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, block_diff: torch.Tensor, carried: torch.Tensor | None, *,
    back: bool, ahead: bool
) -> torch.Tensor:  # fmt: skip
    """Compute (num_blocks, size, heads, head_dim) from `qkv` (num_blocks, size, 3, heads, head_dim).

    `cos` and `sin` (num_blocks, size, 1, head_dim) rotate the first head. `block_diff` is that of the layout; its last
    `size` columns are for `carried` keys and values (num_blocks, size, 2, heads, head_dim), the keys rotated.
    """
    num_blocks, size, _, heads, width = qkv.shape
    out = qkv.new_empty(num_blocks, size, heads, width)
    exact = qkv.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    _attend[(num_blocks, heads)](
        qkv, cos, sin, block_diff, qkv if carried is None else carried, out, num_blocks, width**-0.5,
        BACK=back, AHEAD=ahead, CARRIED=carried is not None, SECTIONS=block_diff.shape[-1] // size, SIZE=size,
        HEADS=heads, WIDTH=width, ROWS=max(16, triton.next_power_of_2(size)), PRECISION="ieee" if exact else "tf32",
    )  # fmt: skip
    return out


@triton.jit
def _rotate(  # type: ignore[no-untyped-def] # Triton's own types
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


def rotate_keys(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the keys of the first head in `qkv` (num_blocks, size, 3, heads, head_dim), contiguous, in place."""
    num_blocks, size, _, heads, width = qkv.shape
    columns = triton.next_power_of_2(width // 2)
    _rotate[(num_blocks * size,)](qkv, cos, sin, HEADS=heads, WIDTH=width, COLUMNS=columns, num_warps=1)
