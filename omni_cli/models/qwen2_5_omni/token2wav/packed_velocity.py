"""Requests of different lengths in one call of token2wav's DiT, concatenated in whole blocks of its attention.

Everything in the DiT except attention is per frame. Attention covers the block of a frame and, in some layers, one
neighbour. So a batch is a row of blocks with neighbours of the same request.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from omni_cli.models.qwen2_5_omni.token2wav.platform import Platform
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Evaluations, Layout, Velocity


class BlockAttention(nn.Module):
    """Replaces the `DiTAttention` of `layer` for packed sequences of blocks of `block_size` frames."""

    def __init__(self, layer: nn.Module, block_size: int, platform: Platform) -> None:
        super().__init__()
        attention = layer.attn
        self.heads = attention.heads
        self.size = block_size
        self.back, self.ahead = bool(layer.look_backward_block), bool(layer.look_ahead_block)
        self._platform = platform
        query, key, value = attention.to_q, attention.to_k, attention.to_v
        self.head_dim = query.out_features // self.heads
        # Only the first head is rotated; its even columns move to its first half.
        order = torch.arange(query.out_features, device=query.weight.device)
        order[: self.head_dim] = torch.cat((order[: self.head_dim : 2], order[1 : self.head_dim : 2]))
        weights = torch.cat([query.weight[order], key.weight[order], value.weight])
        biases = torch.cat([query.bias[order], key.bias[order], value.bias])
        self.to_qkv = platform.make_linear(_linear(weights, biases))
        self.to_out = platform.make_linear(attention.to_out[0])

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        block_diff: torch.Tensor,
        carried: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (1, num_frames, hidden_size) from `hidden` of that shape, and keys and values if `carried` are given.

        The tables `rotary` are (num_blocks, block_size, 1, head_dim); `block_diff` is that of the layout. `carried`
        keys and values, and those of all blocks that are returned, are (num_blocks, block_size, 2, heads, head_dim).
        """
        qkv = self.to_qkv(hidden).view(-1, self.size, 3, self.heads, self.head_dim)
        attended = self._platform.attend(qkv, *rotary, block_diff, carried, back=self.back, ahead=self.ahead)
        out: torch.Tensor = self.to_out(attended.reshape(hidden.shape[0], hidden.shape[1], -1))
        return out, None if carried is None else qkv[:, :, 1:]


class PackedLayer(nn.Module):
    """Replaces a layer of the DiT for packed sequences, all at the same time."""

    def __init__(self, layer: nn.Module, block_size: int, platform: Platform) -> None:
        super().__init__()
        self.attn = BlockAttention(layer, block_size, platform)
        rise, gelu, _, fall = layer.ff.ff
        self.ff = nn.Sequential(platform.make_linear(rise, gelu), platform.make_linear(fall))
        self.eps: float = layer.ff_norm.eps
        self._platform = platform

    def forward(
        self,
        hidden: torch.Tensor,
        normed: torch.Tensor,
        modulation: Sequence[torch.Tensor],
        rotary: tuple[torch.Tensor, torch.Tensor],
        block_diff: torch.Tensor,
        carried: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the new `hidden`, and the norm of it for what follows, both (1, num_frames, hidden_size).

        `hidden` and its norm `normed` have that shape as well. `modulation` is (hidden_size,) each: the gate of the
        attention, shift, scale and gate of the feed-forward part, and shift and scale of what follows. With `carried`
        keys and values, which only a layer that looks back is given, its own come third; see `BlockAttention`.
        """
        gate, ff_shift, ff_scale, ff_gate, shift, scale = modulation
        add_and_norm = self._platform.add_and_norm
        attended, keys_values = self.attn(normed, rotary, block_diff, carried)
        hidden, normed = add_and_norm(hidden, attended, gate, ff_scale, ff_shift, self.eps)
        return *add_and_norm(hidden, self.ff(normed), ff_gate, scale, shift, self.eps), keys_values


class PackedVelocity(Velocity):
    """The DiT for packed sequences, with conditions that are projected once per request."""

    def __init__(self, dit: nn.Module, platform: Platform) -> None:
        super().__init__(dit)
        self.platform = platform
        self.block_size = self.dit.block_size
        layers = [PackedLayer(layer, self.block_size, platform) for layer in self.dit.transformer_blocks]
        self.dit.transformer_blocks = nn.ModuleList(layers)
        self.dit.proj_out = platform.make_linear(self.dit.proj_out)
        entry, mel_dim = self.dit.input_embed.proj, self.dit.mel_dim
        frame_weights, condition_weights = entry.weight.split((mel_dim, entry.in_features - mel_dim), dim=1)
        self.frames_proj = platform.make_linear(_linear(frame_weights.contiguous(), None))
        self.conditions_proj = _linear(condition_weights.contiguous(), entry.bias)

    @property
    def evaluated_modules(self) -> list[nn.Module]:
        return [self.frames_proj, self.conditions_proj, *self.dit.transformer_blocks, self.dit.proj_out]

    @property
    def carried_shape(self) -> tuple[int, ...]:
        """Layers that look back, then the shape of the keys and values of a block."""
        attentions = [layer.attn for layer in self.dit.transformer_blocks]
        num_layers = sum(attention.back for attention in attentions)
        return num_layers, self.block_size, 2, attentions[0].heads, attentions[0].head_dim

    @property
    def carried_dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.dit.transformer_blocks[0].attn.to_qkv.weight.dtype
        return dtype

    def evaluations(self, sampling: DenoisingSettings, *, num_rows: int) -> Evaluations:
        """Return the evaluations of `sampling` for one row, which has the frames of all `num_rows`."""
        return super().evaluations(sampling, num_rows=1)

    def _modulations(self, times: torch.Tensor) -> torch.Tensor:
        """Return the DiT's projections of `times`, with scales that are complete: the DiT adds 1 to them."""
        modulations = super()._modulations(times)
        num_layers = len(self.dit.transformer_blocks)
        # Six parts per layer, of which the second and the fifth are scales, and then a scale and a shift.
        scales = [6 * layer + part for layer in range(num_layers) for part in (1, 4)]
        modulations.unflatten(-1, (6 * num_layers + 2, -1))[..., [*scales, 6 * num_layers], :] += 1
        return modulations

    def constant_inputs(
        self, layout: Layout, conditions: torch.Tensor, positions: torch.Tensor, continued: Sequence[int] | None
    ) -> tuple[torch.Tensor, ...]:
        """Return `conditions` (1, num_frames, hidden_size) float32, projected, and the rest as `BlockAttention` does.

        See `Layout.block_diff` for `continued`.
        """
        tables = self.dit.rotary_embed(conditions, positions)
        rotary = [table.view(layout.num_blocks, self.block_size, 1, -1) for table in tables]
        block_diff = layout.block_diff(continued).to(conditions.device)
        return self.conditions_proj(conditions).float(), *rotary, block_diff

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
        continued block sees before it, also the keys and values of all blocks, layer by layer.
        """
        layers = self.dit.transformer_blocks
        # Before each layer a shift and a scale, after the last one in the other order.
        parts = list(modulation[0].unflatten(0, (6 * len(layers) + 2, -1)))
        shift, scale, *parts = parts[:-2] + parts[:-3:-1]
        hidden = conditions + self.frames_proj(frames)
        normed = functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, self.dit.norm_out.norm.eps)
        remaining = None if carried is None else iter(carried)
        kept = []
        for index, layer in enumerate(layers):
            own = parts[6 * index : 6 * index + 6]
            before = next(remaining) if remaining is not None and layer.attn.back else None
            hidden, normed, keys_values = layer(hidden, normed, own, (cos, sin), block_diff, before)
            kept += [] if keys_values is None else [keys_values]
        velocities: torch.Tensor = self.dit.proj_out(normed)
        return velocities if carried is None else (velocities, *kept)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
