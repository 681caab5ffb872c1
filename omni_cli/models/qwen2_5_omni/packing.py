"""Requests of different lengths in one call of token2wav's DiT, concatenated in whole blocks of its attention.

Everything in the DiT except attention is per frame. Attention covers the block of a frame and, in some layers, one
neighbour. So a batch is a row of blocks with neighbours of the same request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

# Further than any layer attends.
NEVER = 1 << 10


@dataclass(frozen=True)
class Layout:
    """The positions of sequences of `lengths` frames; each begins with a block. Blocks after the last are fillers."""

    lengths: tuple[int, ...]
    block_size: int
    num_blocks: int

    @classmethod
    def of(cls, lengths: Sequence[int], block_size: int, *, num_blocks_for: Callable[[int], int]) -> Layout:
        used = sum(-(-length // block_size) for length in lengths)
        return cls(tuple(lengths), block_size, num_blocks_for(used))

    @property
    def num_frames(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first frame and the length of each sequence."""
        spans, block = [], 0
        for length in self.lengths:
            spans.append((block * self.block_size, length))
            block += -(-length // self.block_size)
        return spans

    def positions(self) -> torch.Tensor:
        """(num_frames,) int64: the position of each frame in its sequence, 0 for fillers."""
        positions = torch.zeros(self.num_frames, dtype=torch.long)
        for start, length in self.spans:
            positions[start : start + length] = torch.arange(length)
        return positions

    def block_diff(self) -> torch.Tensor:
        """(num_blocks, 1, 1, 3 * block_size) int16: the distance in blocks of the keys before, in and after a block.

        `NEVER` for keys of other sequences. Filler blocks attend to themselves, so that their results are finite.
        """
        size = self.block_size
        sequence = torch.full((self.num_blocks,), -1)
        valid = torch.zeros(self.num_frames, dtype=torch.bool)
        for index, (start, length) in enumerate(self.spans):
            sequence[start // size : -(-(start + length) // size)] = index
            valid[start : start + length] = True
        valid = valid.view(self.num_blocks, size) | (sequence < 0)[:, None]
        diff = torch.full((self.num_blocks, 3, size), NEVER, dtype=torch.int16)
        same = ((sequence[1:] == sequence[:-1]) & (sequence[1:] >= 0))[:, None]
        diff[:, 1][valid] = 0
        diff[1:, 0][same & valid[:-1]] = -1
        diff[:-1, 2][same & valid[1:]] = 1
        return diff.view(self.num_blocks, 1, 1, 3 * size)

    def pack(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (1, num_frames, width) from `parts` (length, width), with zeros in between."""
        packed = parts[0].new_zeros(1, self.num_frames, parts[0].shape[-1])
        for (start, length), part in zip(self.spans, parts, strict=True):
            packed[0, start : start + length] = part
        return packed


class BlockAttention(nn.Module):
    """Replaces the `DiTAttention` of a block for packed sequences of blocks of `block_size` frames."""

    def __init__(self, block: nn.Module, block_size: int) -> None:
        super().__init__()
        attention = block.attn
        self.heads = attention.heads
        self.size = block_size
        self.back, self.ahead = int(block.look_backward_block), int(block.look_ahead_block)
        self.to_out = attention.to_out[0]
        query, key, value = attention.to_q, attention.to_k, attention.to_v
        # Only the first head is rotated; its even columns move to its first half.
        width = query.out_features // self.heads
        order = torch.arange(query.out_features, device=query.weight.device)
        order[:width] = torch.cat((order[:width:2], order[1:width:2]))
        self.to_qkv = nn.Linear(query.in_features, 3 * query.out_features, device="meta")
        weights = torch.cat([query.weight[order], key.weight[order], value.weight])
        biases = torch.cat([query.bias[order], key.bias[order], value.bias])
        self.to_qkv.weight = nn.Parameter(weights, requires_grad=False)
        self.to_qkv.bias = nn.Parameter(biases, requires_grad=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return (1, num_frames, hidden_size); rotary tables are (num_blocks, block_size, 1, head_dim).

        `attention_mask` (num_blocks, 1, 1, 3 * block_size) is for the keys before, in and after each block.
        """
        projected = self.to_qkv(hidden_states).view(
            -1, self.size, 3, self.heads, self.to_qkv.out_features // 3 // self.heads
        )
        cos, sin = position_embeddings
        attend = _fused if projected.is_cuda else self._attend
        attended = attend(projected, cos, sin, attention_mask, back=bool(self.back), ahead=bool(self.ahead))
        out: torch.Tensor = self.to_out(attended.reshape(hidden_states.shape[0], hidden_states.shape[1], -1))
        return out

    def _attend(
        self,
        projected: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
        *,
        back: bool,
        ahead: bool,
    ) -> torch.Tensor:
        """Compute the result of the fused kernel with torch's operations."""
        head = projected[:, :, :2, :1]
        low, high = head.chunk(2, dim=-1)
        rotated = head * cos[:, :, None] + torch.cat((-high, low), dim=-1) * sin[:, :, None]
        query_key = torch.cat((rotated.to(projected.dtype), projected[:, :, :2, 1:]), dim=-2)
        query, key = query_key.permute(2, 0, 3, 1, 4)
        value = projected[:, :, 2].transpose(1, 2)
        before, own, after = mask.split(self.size, dim=-1)
        if back or ahead:
            neighbours = ((1, before),) * back + ((0, own),) + ((-1, after),) * ahead
            key, value = (
                # Zeros and not only a mask, so that no value of another request gets in, not even a NaN.
                torch.cat([part.roll(by, dims=0).masked_fill(~seen.mT, 0.0) for by, seen in neighbours], dim=-2)
                for part in (key, value)
            )
            own = torch.cat([seen for _, seen in neighbours], dim=-1)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=own)
        return attended.transpose(1, 2)


def _fused(*arguments: torch.Tensor, back: bool, ahead: bool) -> torch.Tensor:
    """Needs Triton, which is installed wherever CUDA is available."""
    from omni_cli.models.qwen2_5_omni.fused_attention import fused_attention

    return fused_attention(*arguments, back=back, ahead=ahead)


def use_block_attention(dit: nn.Module) -> None:
    """Make the blocks of `dit` take packed sequences only."""
    for block in dit.transformer_blocks:
        block.attn = BlockAttention(block, dit.block_size)
