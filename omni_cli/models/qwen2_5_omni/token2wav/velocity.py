"""token2wav's DiT without the work that is the same in each evaluation.

In each of about 36 evaluations per request, transformers' forward embeds times and codes, computes rotary tables and
masks, and projects the time in each layer. Here these are inputs, computed once per schedule or request.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
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

    It shares the weights of `dit`, which is not changed.
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
            norm.silu.forward = norm.linear.forward = _unchanged
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


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
