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

from omni_cli.execution.cpu_linear import OneDnnLinear
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Velocity

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

    def positions(self, firsts: Sequence[int]) -> torch.Tensor:
        """(num_frames,) int64: the position of each frame, from `firsts` on in each sequence; 0 for fillers."""
        positions = torch.zeros(self.num_frames, dtype=torch.long)
        for (start, length), first in zip(self.spans, firsts, strict=True):
            positions[start : start + length] = torch.arange(first, first + length)
        return positions

    def block_diff(self, continued: Sequence[int] | None) -> torch.Tensor:
        """(num_blocks, 1, 1, 3 * block_size) int16: the distance in blocks of the keys before, in and after a block.

        `NEVER` for keys of other sequences. Filler blocks attend to themselves, so that their results are finite. With
        the numbers of `continued` blocks, each has 4 * block_size keys, the last of which are carried keys: those
        before a continued block.
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
        if continued is not None:
            carried = torch.full((self.num_blocks, 1, size), NEVER, dtype=torch.int16)
            carried[list(continued)] = -1
            diff = torch.cat((diff, carried), dim=1)
        return diff.view(self.num_blocks, 1, 1, -1)


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
        block_diff: torch.Tensor,
        carried: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (1, num_frames, hidden_size); rotary tables are (num_blocks, block_size, 1, head_dim).

        `block_diff` is that of the layout. With `carried` keys and values (num_blocks, block_size, 2, heads, head_dim)
        it is for those, too, and all blocks' own are returned in that shape.
        """
        projected = self.to_qkv(hidden_states).view(
            -1, self.size, 3, self.heads, self.to_qkv.out_features // 3 // self.heads
        )
        cos, sin = position_embeddings
        attend = _fused if projected.is_cuda else self._attend
        attended = attend(projected, cos, sin, block_diff, carried, back=bool(self.back), ahead=bool(self.ahead))
        out: torch.Tensor = self.to_out(attended.reshape(hidden_states.shape[0], hidden_states.shape[1], -1))
        if carried is None:
            return out, None
        if projected.is_cuda:
            from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_attention import rotate_keys

            rotate_keys(projected, cos, sin)  # the fused kernel leaves them as they were
        return out, projected[:, :, 1:]

    def _attend(
        self,
        projected: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        block_diff: torch.Tensor,
        carried: torch.Tensor | None,
        *,
        back: bool,
        ahead: bool,
    ) -> torch.Tensor:
        """Compute the result of the fused kernel with torch's operations."""
        _rotate(projected[:, :, :2, :1], cos, sin)
        query, keys_values = projected[:, :, 0], projected[:, :, 1:]
        before, own, after, *last = block_diff.split(self.size, dim=-1)
        seen = own == 0
        if back or ahead:
            neighbours = ((-1, before == -1),) * back + ((0, seen),) + ((1, after == 1),) * ahead
            keys_values = _windows(keys_values, neighbours)
            seen = torch.cat([each for _, each in neighbours], dim=-1)
            if carried is not None:
                # No other keys are before a continued block, and there are zeros for other blocks.
                keys_values[:, : self.size] += carried
                seen[..., : self.size] |= last[0] == -1
        query, key, value = (part.transpose(1, 2) for part in (query, *keys_values.unbind(2)))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return attended.transpose(1, 2)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `heads` (num_blocks, block_size, parts, 1, head_dim) in place."""
    low, high = heads.chunk(2, dim=-1)
    cos, sin = (table[:, :, None, :, : low.shape[-1]] for table in (cos, sin))
    turned = torch.addcmul(low * cos, high, sin, value=-1)
    high.copy_(torch.addcmul(high * cos, low, sin))
    low.copy_(turned)


def _windows(blocks: torch.Tensor, neighbours: tuple[tuple[int, torch.Tensor], ...]) -> torch.Tensor:
    """Return (num_blocks, len(neighbours) * size, ...): each block (size, ...) between its neighbours in its sequence.

    Zeros and not only a mask in place of a block of another request, so that not even its NaN gets in.
    """
    num_blocks = blocks.shape[0]
    own = torch.arange(num_blocks, device=blocks.device)
    places = [torch.where(seen.flatten(1).any(dim=1), own + by, num_blocks) for by, seen in neighbours]
    and_zeros = torch.cat((blocks, blocks.new_zeros(1, *blocks.shape[1:])))
    windows = and_zeros.index_select(0, torch.stack(places, dim=1).flatten())
    return windows.view(num_blocks, -1, *blocks.shape[2:])


def _fused(*arguments: torch.Tensor | None, back: bool, ahead: bool) -> torch.Tensor:
    """Needs Triton, which is installed wherever CUDA is available."""
    from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_attention import fused_attention

    return fused_attention(*arguments, back=back, ahead=ahead)


class PackedLayer(nn.Module):
    """Replaces a layer of the DiT for packed sequences, all at the same time."""

    def __init__(self, layer: nn.Module, block_size: int) -> None:
        super().__init__()
        self.attn = BlockAttention(layer, block_size)
        self.ff = layer.ff
        self.eps: float = layer.ff_norm.eps

    def forward(
        self,
        hidden: torch.Tensor,
        normed: torch.Tensor,
        modulation: Sequence[torch.Tensor],
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        block_diff: torch.Tensor,
        carried: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the new `hidden`, and normed for what follows, both (1, num_frames, hidden_size) from such.

        `modulation` is (hidden_size,) each: the gate of the attention, shift, scale and gate of the feed-forward part,
        and shift and scale of what follows. Of a layer that looks back: also the keys and values, if it is given
        `carried` ones; see `BlockAttention`.
        """
        gate, ff_shift, ff_scale, ff_gate, shift, scale = modulation
        attended, kept = self.attn(normed, position_embeddings, block_diff, carried)
        hidden, normed = _add_and_norm(hidden, attended, gate, ff_scale, ff_shift, self.eps)
        return *_add_and_norm(hidden, self.ff(normed), ff_gate, scale, shift, self.eps), kept

    def fuse(self) -> None:
        """Use products with the activation in them; on a CPU, those of oneDNN for all linear layers."""
        rise, gelu, _, fall = self.ff.ff
        if rise.weight.is_cuda:
            self.ff.ff = nn.ModuleList([GeluLinear(rise), fall])
            return
        self.ff.ff = nn.ModuleList([OneDnnLinear(rise, gelu), OneDnnLinear(fall)])
        self.attn.to_qkv, self.attn.to_out = OneDnnLinear(self.attn.to_qkv), OneDnnLinear(self.attn.to_out)


class GeluLinear(nn.Linear):
    """Replaces `linear` and the GELU, approximated by tanh, after it, on a CUDA device."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) of `inputs` (..., in_features)."""
        from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_linear import fits, linear_gelu

        rows = inputs.flatten(0, -2).to(self.weight.dtype)
        if fits(rows, self.weight):
            made = linear_gelu(rows, self.weight, self.bias)
        else:
            made = torch._addmm_activation(self.bias, rows, self.weight.mT, use_gelu=True)
        return made.view(*inputs.shape[:-1], -1)


def _add_and_norm(
    hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `hidden + gate * branch`, and that normed, scaled and shifted."""
    if hidden.is_cuda:
        from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_norm import add_and_norm

        return add_and_norm(hidden, branch, gate, scale, shift, eps)
    hidden = torch.addcmul(hidden, gate, branch)
    return hidden, functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, eps)


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
        """Use faster products; on a CPU, they are for float32, eager execution and weights that stay."""
        for layer in self.dit.transformer_blocks:
            layer.fuse()
        if not self.dit.proj_out.weight.is_cuda:
            self.frames_proj, self.dit.proj_out = OneDnnLinear(self.frames_proj), OneDnnLinear(self.dit.proj_out)

    @property
    def carried_shape(self) -> tuple[int, ...]:
        """Layers that look back, then the shape of the keys and values of a block."""
        attentions = [layer.attn for layer in self.dit.transformer_blocks]
        width = attentions[0].to_qkv.out_features // 3 // attentions[0].heads
        return sum(each.back for each in attentions), attentions[0].size, 2, attentions[0].heads, width

    @property
    def carried_dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.dit.transformer_blocks[0].attn.to_qkv.weight.dtype
        return dtype

    def _modulations(self, times: torch.Tensor) -> torch.Tensor:
        """Return the DiT's projections of `times`, with scales that are complete: the DiT adds 1 to them."""
        made = super()._modulations(times)
        num_layers = len(self.dit.transformer_blocks)
        # Six parts per layer, of which the second and the fifth are scales, and then a scale and a shift.
        scales = [6 * layer + part for layer in range(num_layers) for part in (1, 4)]
        made.unflatten(-1, (6 * num_layers + 2, -1))[..., [*scales, 6 * num_layers], :] += 1
        return made

    def forward(
        self,
        frames: torch.Tensor,
        modulation: torch.Tensor,
        conditions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        block_diff: torch.Tensor,
        carried: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return velocities as `Velocity` does.

        With `carried` keys and values (layers that look back, num_blocks, block_size, 2, heads, head_dim), which a
        continued block sees before it, also those of all blocks, layer by layer.
        """
        dit, layers = self.dit, self.dit.transformer_blocks
        # Before each layer a shift and a scale, after the last one in the other order.
        given = list(modulation[0].unflatten(0, (6 * len(layers) + 2, -1)))
        shift, scale, *parts = given[:-2] + given[:-3:-1]
        hidden = self.enter(frames, conditions)
        normed = functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, dit.norm_out.norm.eps)
        remaining = None if carried is None else iter(carried)
        made = []
        for index, layer in enumerate(layers):
            own = parts[6 * index : 6 * index + 6]
            before = next(remaining) if remaining is not None and layer.attn.back else None
            hidden, normed, kept = layer(hidden, normed, own, (cos, sin), block_diff, before)
            made += [] if kept is None else [kept]
        velocities: torch.Tensor = dit.proj_out(normed)
        return velocities if carried is None else (velocities, *made)

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
