"""token2wav's DiT without the work that is the same in each evaluation.

In each of about 36 evaluations per request, transformers' forward embeds times and codes, computes rotary tables and
masks, and projects the time in each layer. Here these are inputs, computed once per schedule or request.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

# Evaluations of the denoiser per step of transformers' solver (Runge-Kutta of order four).
EVALUATIONS_PER_STEP = 4
# Schedules in memory: a profile has one, and requests may add others.
MAX_SCHEDULES = 4

VelocityFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Schedule:
    """The times of a request's steps."""

    num_steps: int
    sway_coefficient: float

    def times(self, device: torch.device) -> torch.Tensor:
        """Return (num_steps,) float32, with the arithmetic of the DiT's own `sample`."""
        times = torch.linspace(0, 1, self.num_steps, device=device)
        return times + self.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)


@dataclass(frozen=True)
class Evaluations:
    """Times (num_steps,) and the DiT's projections of each evaluation's time, (num_evaluations, rows, width)."""

    times: torch.Tensor
    modulations: torch.Tensor


class Velocity(nn.Module):
    """The DiT from its input projection on, sharing the weights of `dit`, which is not changed."""

    def __init__(self, dit: nn.Module) -> None:
        super().__init__()
        shared = {id(tensor): tensor for tensor in (*dit.parameters(), *dit.buffers())}
        self.dit = copy.deepcopy(dit, memo=shared)
        norms = [block.attn_norm for block in self.dit.transformer_blocks] + [self.dit.norm_out]
        self._widths = [norm.linear.out_features for norm in norms]
        self._projections = [(norm.silu.forward, norm.linear.forward) for norm in norms]
        for norm in norms:
            # Their result is an input.
            norm.silu.forward = norm.linear.forward = _unchanged
        self._schedules: OrderedDict[tuple[Schedule, int], Evaluations] = OrderedDict()

    def evaluations(self, schedule: Schedule, *, num_rows: int) -> Evaluations:
        """Return the evaluations of `schedule` for a batch of `num_rows`, all rows at the same time."""
        key = (schedule, num_rows)
        if key not in self._schedules:
            times = schedule.times(self.dit.device)
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

    def forward(
        self,
        frames: torch.Tensor,
        modulation: torch.Tensor,
        conditions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        block_diff: torch.Tensor,
    ) -> torch.Tensor:
        """Return velocities (rows, num_frames, mel_dim) of `frames` of that shape.

        `modulation` is (rows or 1, width), `conditions` (rows, num_frames, condition_dim); rotary tables and
        `block_diff` are passed to the DiT's blocks.
        """
        dit = self.dit
        *modulations, last = modulation.split(self._widths, dim=-1)
        hidden = self.enter(frames, conditions)
        for block, given in zip(dit.transformer_blocks, modulations, strict=True):
            hidden = block(hidden, given, position_embeddings=(cos, sin), block_diff=block_diff)
        velocities: torch.Tensor = dit.proj_out(dit.norm_out(hidden, last))
        return velocities

    def enter(self, frames: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input, (rows, num_frames, hidden_size)."""
        entered: torch.Tensor = self.dit.input_embed.proj(torch.cat((frames, conditions), dim=-1))
        return entered


def evaluation_times(times: torch.Tensor) -> list[torch.Tensor]:
    """Return the times, () each and in order, at which transformers' solver evaluates a velocity."""
    seen: list[torch.Tensor] = []

    def velocity(time: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.append(time)
        return value

    for index in range(len(times) - 1):
        stepped(times, index, torch.zeros(1, device=times.device), velocity)
    return seen


def stepped(times: torch.Tensor, index: int, value: torch.Tensor, velocity: VelocityFunction) -> torch.Tensor:
    """Return `value` one step after `times[index]`.

    transformers' `integrate` makes the same steps, but waits for the device in each and keeps every value.
    """
    start, end = times[index], times[index + 1]
    change, _ = RungeKutta4ODESolver(velocity, value)._compute_step(velocity, start, end - start, end, value)
    return value + change


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
