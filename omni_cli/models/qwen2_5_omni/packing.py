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

from omni_cli.models.qwen2_5_omni.velocity import Velocity

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
        weights = torch.cat([query.weight[order], key.weight[order], value.weight])
        self.to_qkv = _linear(weights, torch.cat([query.bias[order], key.bias[order], value.bias]))

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
        low, high = projected[:, :, :2, :1].chunk(2, dim=-1)
        cos, sin = (table[:, :, None, :, : low.shape[-1]] for table in (cos, sin))
        turned = torch.addcmul(low * cos, high, sin, value=-1)
        high.copy_(torch.addcmul(high * cos, low, sin))
        low.copy_(turned)
        query, keys_values = projected[:, :, 0], projected[:, :, 1:]
        before, own, after = mask.split(self.size, dim=-1)
        if back or ahead:
            neighbours = ((-1, before),) * back + ((0, own),) + ((1, after),) * ahead
            keys_values = _windows(keys_values, neighbours)
            own = torch.cat([seen for _, seen in neighbours], dim=-1)
        query, key, value = (part.transpose(1, 2) for part in (query, *keys_values.unbind(2)))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=own)
        return attended.transpose(1, 2)


def _windows(blocks: torch.Tensor, neighbours: tuple[tuple[int, torch.Tensor], ...]) -> torch.Tensor:
    """Return (num_blocks, len(neighbours) * size, ...): each block (size, ...) between its neighbours in its sequence.

    Zeros and not only a mask in place of a block of another request, so that not even its NaN gets in.
    """
    num_blocks = blocks.shape[0]
    windows = blocks.new_empty(num_blocks, len(neighbours), *blocks.shape[1:])
    for place, (by, seen) in enumerate(neighbours):
        is_own = seen.flatten(1).any(dim=1).view(-1, *[1] * (blocks.dim() - 1))
        first, end = max(0, -by), num_blocks - max(0, by)
        windows[first:end, place] = blocks[first + by : end + by].where(is_own[first:end], 0.0) if by else blocks
        windows[:first, place] = windows[end:, place] = 0.0
    return windows.flatten(1, 2)


def _fused(*arguments: torch.Tensor, back: bool, ahead: bool) -> torch.Tensor:
    """Needs Triton, which is installed wherever CUDA is available."""
    from omni_cli.models.qwen2_5_omni.fused_attention import fused_attention

    return fused_attention(*arguments, back=back, ahead=ahead)


class PackedLayer(nn.Module):
    """Replaces a layer of the DiT for packed sequences, all at the same time: norms, shifts and gates in one pass each.

    Called as transformers' layer, with the projected time in place of the time.
    """

    def __init__(self, layer: nn.Module, block_size: int) -> None:
        super().__init__()
        self.attn = BlockAttention(layer, block_size)
        self.ff = layer.ff
        self.norm: nn.LayerNorm = layer.ff_norm
        self._fused: torch.Tensor | None = None

    def forward(
        self,
        hidden: torch.Tensor,
        modulation: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        block_diff: torch.Tensor,
    ) -> torch.Tensor:
        """Return (1, num_frames, hidden_size) from that shape; `modulation` is (1, 6 * hidden_size)."""
        shift, scale, gate, ff_shift, ff_scale, ff_gate = modulation[0].chunk(6)
        mask = (block_diff >= -self.attn.back) & (block_diff <= self.attn.ahead)
        attended = self.attn(self._normed(hidden, scale, shift), position_embeddings, mask)
        hidden = torch.addcmul(hidden, gate, attended)
        return torch.addcmul(hidden, ff_gate, self._fed(self._normed(hidden, ff_scale, ff_shift)))

    def _normed(self, hidden: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(hidden, self.norm.normalized_shape, 1 + scale, shift, self.norm.eps)

    def fuse(self) -> None:
        """Use oneDNN's product with the activation in it, which torch.compile calls, too: torch's takes a tenth of the
        layer's time on a CPU. For float32, eager execution and weights that do not change."""
        self._fused = torch.ops.mkldnn._reorder_linear_weight(self.ff.ff[0].weight)

    def _fed(self, normed: torch.Tensor) -> torch.Tensor:
        rise, gelu, _, fall = self.ff.ff
        if self._fused is None:
            risen = gelu(rise(normed))
        else:
            risen = torch.ops.mkldnn._linear_pointwise(normed, self._fused, rise.bias, "gelu", [], gelu.approximate)
        return fall(risen)


class PackedVelocity(Velocity):
    """The DiT for packed sequences, with conditions that are projected once per request."""

    def __init__(self, dit: nn.Module) -> None:
        super().__init__(dit)
        layers = [PackedLayer(layer, self.dit.block_size) for layer in self.dit.transformer_blocks]
        self.dit.transformer_blocks = nn.ModuleList(layers)
        whole = self.dit.input_embed.proj
        of_frames, of_conditions = whole.weight.split((self.dit.mel_dim, whole.in_features - self.dit.mel_dim), dim=1)
        self.frames_proj = _linear(of_frames.contiguous(), None)
        self.conditions_proj = _linear(of_conditions.contiguous(), whole.bias)

    def fuse(self) -> None:
        for layer in self.dit.transformer_blocks:
            layer.fuse()

    def enter(self, frames: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input, (1, num_frames, hidden_size); `conditions` are projected, float32."""
        entered: torch.Tensor = conditions + self.frames_proj(frames)
        return entered


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made
