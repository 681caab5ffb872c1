"""token2wav's DiT without the work that is the same in each evaluation.

In each of about 36 evaluations per request, transformers' forward embeds times and codes, computes rotary tables and
masks, and projects the time in each layer. Here these are inputs, computed once per schedule or request.

`PackedVelocity` has requests of different lengths in one call, concatenated in whole blocks of the DiT's attention.
Everything in the DiT except attention is per frame. Attention covers the block of a frame and, in some layers, one
neighbour. So a batch is a row of blocks with neighbours of the same request.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

from omni_cli.models.qwen2_5_omni.token2wav.platform import Platform
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings

# Larger than any attention span, in blocks.
NEVER = 1 << 10


@dataclass(frozen=True)
class Layout:
    """Sequences of `lengths` frames, each of which begins with a block. Blocks after the last sequence are fillers."""

    lengths: tuple[int, ...]
    block_size: int
    num_blocks: int

    @classmethod
    def pack(cls, lengths: Sequence[int], block_size: int, *, num_blocks_for: Callable[[int], int]) -> Layout:
        """Lay out sequences one after another; `num_blocks_for` returns all blocks for the number that they fill."""
        num_used = sum(-(-length // block_size) for length in lengths)
        return cls(tuple(lengths), block_size, num_blocks_for(num_used))

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
        """Return the position of each frame (num_frames,) int64, from `firsts` on in each sequence; 0 for fillers."""
        positions = torch.zeros(self.num_frames, dtype=torch.long)
        for (start, length), first in zip(self.spans, firsts, strict=True):
            positions[start : start + length] = torch.arange(first, first + length)
        return positions

    def block_diff(self, continued: Sequence[int] | None) -> torch.Tensor:
        """Return (num_blocks, 1, 1, 3 * block_size) int16: the distance in blocks of the keys before, in and after one.

        Keys of other sequences have the distance `NEVER`. Filler blocks attend to themselves, so that their results are
        finite. With the numbers of `continued` blocks there are 4 * block_size keys per block. The last `block_size` of
        them are carried keys, which continued blocks attend to as the block before them.
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


# Evaluations of the DiT per step of transformers' solver (Runge-Kutta of order four).
EVALUATIONS_PER_STEP = 4
# Schedules in memory: a profile has one, and requests may add others.
MAX_SCHEDULES = 4


@dataclass(frozen=True)
class Evaluations:
    """Times (num_steps,) and the DiT's projections of each evaluation's time, (num_evaluations, rows, width)."""

    times: torch.Tensor
    modulations: torch.Tensor


class Velocity(nn.Module):
    """The DiT from its input projection on, in transformers' own layers, for one request and bit for bit.

    It shares the weights of `dit`, which is changed by a `PackedVelocity` only.
    """

    # Each sequence of a call begins at a multiple of this many frames.
    block_size = 1

    def __init__(self, dit: nn.Module) -> None:
        super().__init__()
        self.platform = Platform()
        shared = {id(tensor): tensor for tensor in (*dit.parameters(), *dit.buffers())}
        self.dit = copy.deepcopy(dit, memo=shared)
        norms = [block.attn_norm for block in self.dit.transformer_blocks] + [self.dit.norm_out]
        self._widths = [norm.linear.out_features for norm in norms]
        self._projections = [(norm.silu.forward, norm.linear.forward) for norm in norms]
        for norm in norms:
            # Their result is an input.
            norm.silu.forward = norm.linear.forward = nn.Identity().forward
        self._schedules: OrderedDict[tuple[int, float, int], Evaluations] = OrderedDict()

    def evaluations(self, sampling: DenoisingSettings, *, num_rows: int) -> Evaluations:
        """Return the evaluations of `sampling` for a batch of `num_rows`, all rows at the same time."""
        key = (sampling.num_steps, sampling.sway_coefficient, num_rows)
        if key not in self._schedules:
            times = sampling.times(self.dit.device)
            # Once per schedule, so in float32 with any precision.
            with torch.autocast(times.device.type, enabled=False):
                rows = [self._modulations(time.repeat(num_rows)) for time in evaluation_times(times)]
            self._schedules[key] = Evaluations(times, torch.stack(rows))
            if len(self._schedules) > MAX_SCHEDULES:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _modulations(self, times: torch.Tensor) -> torch.Tensor:
        embedded = self.dit.time_embed(times)
        return torch.cat([linear(silu(embedded)) for silu, linear in self._projections], dim=-1)

    @property
    def evaluated_modules(self) -> list[nn.Module]:
        """The modules of each evaluation. Embeddings of times and speakers, which run once, are not among them."""
        blocks = [part for block in self.dit.transformer_blocks for part in (block.attn, block.ff)]
        return [self.dit.input_embed.proj, *blocks, self.dit.proj_out]

    def constant_inputs(
        self, layout: Layout, conditions: torch.Tensor, positions: torch.Tensor, continued: Sequence[int] | None
    ) -> tuple[torch.Tensor, ...]:
        """Return what `forward` needs in each evaluation besides frames and modulation.

        `conditions` (1, num_frames, condition_dim) and `positions` (1, num_frames) are those of `layout`. `continued`
        must be None: a chunk of a stream is computed with codes before it.
        """
        num_rows = len(layout.lengths)
        conditions = conditions.view(num_rows, -1, conditions.shape[-1])
        rotary = self.dit.rotary_embed(conditions, positions.view(num_rows, -1))
        # One mask for all rows and heads; attention broadcasts it.
        block_diff = self.dit._create_block_diff(conditions)[:1, :1].to(torch.int16)
        return conditions, *rotary, block_diff

    def forward(
        self,
        frames: torch.Tensor,
        modulation: torch.Tensor,
        conditions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        block_diff: torch.Tensor,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return velocities (1, num_frames, mel_dim) of `frames` of that shape, which has all rows.

        `modulation` (rows, width) is that of the evaluation; see `constant_inputs` for the rest.
        """
        dit = self.dit
        *modulations, last = modulation.split(self._widths, dim=-1)
        rows = frames.view(*conditions.shape[:2], -1)
        hidden = dit.input_embed.proj(torch.cat((rows, conditions), dim=-1))
        for block, own in zip(dit.transformer_blocks, modulations, strict=True):
            hidden = block(hidden, own, position_embeddings=(cos, sin), block_diff=block_diff)
        velocities: torch.Tensor = dit.proj_out(dit.norm_out(hidden, last))
        return velocities.view(frames.shape)


def evaluation_times(times: torch.Tensor) -> list[torch.Tensor]:
    """Return the times, () each and in order, at which transformers' solver evaluates a velocity."""
    seen: list[torch.Tensor] = []

    def velocity(time: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.append(time)
        return value

    value = torch.zeros(1, device=times.device)
    solver = RungeKutta4ODESolver(velocity, value)
    for start, end in itertools.pairwise(times):
        solver._compute_step(velocity, start, end - start, end, value)
    return seen


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
    ) -> torch.Tensor:
        """Return (1, num_frames, hidden_size) from `hidden` of that shape; `carried` receives keys and values.

        The tables `rotary` are (num_blocks, block_size, 1, head_dim); `block_diff` is that of the layout. `carried`
        keys and values, and those of all blocks that replace them, are (num_blocks, block_size, 2, heads, head_dim).
        """
        qkv = self.to_qkv(hidden).view(-1, self.size, 3, self.heads, self.head_dim)
        attended = self._platform.attend(qkv, *rotary, block_diff, carried, back=self.back, ahead=self.ahead)
        if carried is not None:
            carried.copy_(qkv[:, :, 1:])
        out: torch.Tensor = self.to_out(attended.reshape(hidden.shape[0], hidden.shape[1], -1))
        return out


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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new `hidden`, and the norm of it for what follows, both (1, num_frames, hidden_size).

        `hidden` and its norm `normed` have that shape as well. `modulation` is (hidden_size,) each: the gate of the
        attention, shift, scale and gate of the feed-forward part, and shift and scale of what follows. Its own keys and
        values replace `carried` ones, which only a layer that looks back is given; see `BlockAttention`.
        """
        gate, ff_shift, ff_scale, ff_gate, shift, scale = modulation
        add_and_norm = self._platform.add_and_norm
        attended = self.attn(normed, rotary, block_diff, carried)
        hidden, normed = add_and_norm(hidden, attended, gate, ff_scale, ff_shift, self.eps)
        return add_and_norm(hidden, self.ff(normed), ff_gate, scale, shift, self.eps)


class PackedVelocity(Velocity):
    """The DiT for packed sequences, with conditions that are projected once per request."""

    overwritten = frozenset({"carried"})

    def __init__(self, dit: nn.Module, platform: Platform) -> None:
        """Take over the layers of `dit` one by one, so that there is room for the weights of the next one."""
        super().__init__(dit)
        self.platform = platform
        self.block_size = self.dit.block_size
        for index, layer in enumerate(self.dit.transformer_blocks):
            self.dit.transformer_blocks[index] = PackedLayer(layer, self.block_size, platform)
            dit.transformer_blocks[index] = nn.Identity()
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
        continued block sees before it, also these, replaced by the keys and values of all blocks.
        """
        layers = self.dit.transformer_blocks
        # Before each layer a shift and a scale, after the last one in the other order.
        parts = list(modulation[0].unflatten(0, (6 * len(layers) + 2, -1)))
        shift, scale, *parts = parts[:-2] + parts[:-3:-1]
        hidden = conditions + self.frames_proj(frames)
        normed = functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, self.dit.norm_out.norm.eps)
        remaining = None if carried is None else iter(carried)
        for index, layer in enumerate(layers):
            own = parts[6 * index : 6 * index + 6]
            before = next(remaining) if remaining is not None and layer.attn.back else None
            hidden, normed = layer(hidden, normed, own, (cos, sin), block_diff, before)
        velocities: torch.Tensor = self.dit.proj_out(normed)
        return velocities if carried is None else (velocities, carried)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
