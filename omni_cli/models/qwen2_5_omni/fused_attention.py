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


@triton.jit
def _attend(  # type: ignore[no-untyped-def] # Triton's own types
    qkv, cos, sin, mask, carried, out, num_blocks, scale, BACK: tl.constexpr, AHEAD: tl.constexpr,
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
        # 0, 1 and -1; for carried ones, the mask's last section.
        by = 2 if turn == 3 else turn - 3 * (turn // 2)
        if turn == 0 or (turn == 1 and AHEAD) or (turn == 2 and BACK) or (turn == 3 and CARRIED):
            inside = real
            if turn != 3:
                inside = real & (block + by >= 0) & (block + by < num_blocks)
            seen = tl.load(mask + (block * SECTIONS + by + 1) * SIZE + place, mask=inside, other=0) != 0
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
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, carried: torch.Tensor | None, *,
    back: bool, ahead: bool
) -> torch.Tensor:  # fmt: skip
    """Compute (num_blocks, size, heads, head_dim) from `qkv` (num_blocks, size, 3, heads, head_dim).

    `cos` and `sin` (num_blocks, size, 1, head_dim) rotate the first head; `mask` (num_blocks, 1, 1, 3 * size) is for
    the keys before, in and after each block. `carried` keys and values (num_blocks, size, 2, heads, head_dim), rotated,
    are before a block, too; the mask's last `size` columns are for them.
    """
    num_blocks, size, _, heads, width = qkv.shape
    out = qkv.new_empty(num_blocks, size, heads, width)
    exact = qkv.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    _attend[(num_blocks, heads)](
        qkv, cos, sin, mask, qkv if carried is None else carried, out, num_blocks, width**-0.5, BACK=back, AHEAD=ahead,
        CARRIED=carried is not None, SECTIONS=mask.shape[-1] // size, SIZE=size, HEADS=heads, WIDTH=width,
        ROWS=max(16, triton.next_power_of_2(size)), PRECISION="ieee" if exact else "tf32",
    )  # fmt: skip
    return out
