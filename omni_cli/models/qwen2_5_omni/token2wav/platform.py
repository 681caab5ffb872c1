"""Operations of token2wav that a device may have its own version of, and the vocoder; here in torch, for any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from omni_cli.backends.execution.modes import ExecutionMode
from omni_cli.backends.execution.precision import OneDnnLinear
from omni_cli.config.schema import Execution, Precision
from omni_cli.models.qwen2_5_omni.token2wav.request import SynthesisRequest

# Frames on either side that affect a frame: with 16, samples differ from those of the whole by float32's rounding.
VOCODER_CONTEXT_FRAMES = 24


@dataclass(frozen=True)
class VocoderInput:
    """The frames that a request's samples depend on, (1, num_frames, mel_dim), and the range of requested samples."""

    request_id: str
    frames: torch.Tensor
    first_sample: int
    num_samples: int

    @classmethod
    def from_mel(
        cls, request: SynthesisRequest, mel: torch.Tensor, *, repeats: int, samples_per_frame: int
    ) -> VocoderInput:
        """Create it from `mel` (1, num_frames, mel_dim) of all codes of `request`, `repeats` frames per code."""
        begin, end = ((code - request.codes_start) * repeats for code in (request.start, request.end))
        if request.previous is not None:
            mel = torch.cat((request.previous.mel, mel), dim=1)
            begin, end = (frame + request.previous.mel.shape[1] for frame in (begin, end))
        first = max(0, begin - VOCODER_CONTEXT_FRAMES)
        return cls(
            request.request_id,
            mel[:, first : end + VOCODER_CONTEXT_FRAMES],
            (begin - first) * samples_per_frame,
            (end - begin) * samples_per_frame,
        )

    def select(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the requested samples (num_samples,) from those that start with the first frame."""
        return samples[self.first_sample : self.first_sample + self.num_samples]


class Vocoder:
    """transformers' BigVGAN, one request at a time."""

    def __init__(self, vocoder: nn.Module) -> None:
        self.module = vocoder
        self.samples_per_frame = math.prod(vocoder.config.upsample_rates)

    def use_graphs(self, prepare: Callable[..., ExecutionMode]) -> None:
        """Do nothing: spectrograms of every length would need a graph of their own."""

    def capture_ahead(self) -> None:
        """Do nothing: nothing is compiled or captured."""

    def waveforms(self, inputs: Sequence[VocoderInput]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield request ids with samples (num_samples,) float32 on the host, as soon as they are ready."""
        for vocoder_input in inputs:
            samples = self.module(vocoder_input.frames.permute(0, 2, 1)).float()
            yield vocoder_input.request_id, vocoder_input.select(samples.reshape(-1))


class Platform:
    """torch's operations. The platform of a device overrides those that it does in another way."""

    # Batches that run at the same time, each on its own threads.
    num_workers = 1
    # True if all requests together are faster than some of them after the others.
    runs_together = False

    def get_max_blocks(self, num_blocks: int) -> int:
        """Return the largest batch for waiting requests that have `num_blocks` in all."""
        return num_blocks

    def make_linear(self, linear: nn.Linear, gelu: nn.GELU | None = None) -> nn.Module:
        """Return a module that computes `linear`, and then `gelu` if there is one, with the weights of `linear`."""
        return linear if gelu is None else nn.Sequential(linear, gelu)

    def make_vocoder(self, vocoder: nn.Module) -> Vocoder:
        return Vocoder(vocoder)

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        block_diff: torch.Tensor,
        carried: torch.Tensor | None,
        *,
        back: bool,
        ahead: bool,
    ) -> torch.Tensor:
        """Return attention (num_blocks, size, heads, head_dim) of `qkv` (num_blocks, size, 3, heads, head_dim).

        `cos` and `sin` (num_blocks, size, 1, head_dim) rotate the first head. Each block attends to itself, and to the
        block before it with `back`, and after it with `ahead`, where `block_diff` has that distance; see `Layout`. With
        `carried` keys and values (num_blocks, size, 2, heads, head_dim), continued blocks attend to them, and the
        keys in `qkv` are rotated in place.
        """
        _rotate(qkv[:, :, :2, :1], cos, sin)
        query, keys_values = qkv[:, :, 0], qkv[:, :, 1:]
        size = qkv.shape[1]
        before, own, after, *last = block_diff.split(size, dim=-1)
        seen = own == 0
        if back or ahead:
            neighbours = ((-1, before == -1),) * back + ((0, seen),) + ((1, after == 1),) * ahead
            keys_values = _windows(keys_values, neighbours)
            seen = torch.cat([mask for _, mask in neighbours], dim=-1)
            if carried is not None:
                # A continued block sees no other keys before it, and `carried` has zeros for all other blocks.
                keys_values[:, :size] += carried
                seen[..., :size] |= last[0] == -1
        query, key, value = (part.transpose(1, 2) for part in (query, *keys_values.unbind(2)))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return attended.transpose(1, 2)

    def add_and_norm(
        self,
        hidden: torch.Tensor,
        branch: torch.Tensor,
        gate: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `hidden + gate * branch`, and this sum normed along its last dimension, scaled and shifted.

        `hidden` (..., width) float32 and `branch` of that shape are contiguous, the others (width,) float32.
        """
        hidden = torch.addcmul(hidden, gate, branch)
        return hidden, functional.layer_norm(hidden, hidden.shape[-1:], scale, shift, eps)

    def advance(
        self,
        predicted: torch.Tensor,
        locations: torch.Tensor,
        frames: torch.Tensor,
        slopes: torch.Tensor,
        times: torch.Tensor,
        packed: torch.Tensor,
        part: int,
        guidance_scale: float,
    ) -> None:
        """Apply guidance and evaluation `part` (0 to 3) of a step of transformers' Runge-Kutta solver.

        `predicted` (1, num_packed, width) are the velocities of the frames that `packed` has now, and `packed`, of that
        shape, receives the frames to evaluate next, at `locations` (1, or 2 with guidance, num_frames) int64. `frames`
        (num_frames, width) are those at the beginning of the step, and at its end after the last part; `slopes` (3,
        num_frames, width) the velocities of the step so far. The step begins with the first of `times`. All are
        contiguous, and all but `predicted` float32.
        """
        rows = predicted[0, locations].float()
        slope = rows[0] if len(rows) == 1 else rows[0] + (rows[0] - rows[1]) * guidance_scale
        change = times[1] - times[0]
        first, second, third = slopes
        # In transformers' order, for its bits.
        match part:
            case 0:
                evaluated = frames + change * slope * (1 / 3)
            case 1:
                evaluated = frames + change * (slope - first * (1 / 3))
            case 2:
                evaluated = frames + change * (first - second + slope)
            case _:
                evaluated = frames.add_((first + 3 * (second + third) + slope) * change / 8)
        if part < len(slopes):
            slopes[part] = slope
        packed[0, locations] = evaluated


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `heads` (num_blocks, block_size, parts, 1, head_dim) in place."""
    low, high = heads.chunk(2, dim=-1)
    cos, sin = (table[:, :, None, :, : low.shape[-1]] for table in (cos, sin))
    turned = torch.addcmul(low * cos, high, sin, value=-1)
    high.copy_(torch.addcmul(high * cos, low, sin))
    low.copy_(turned)


def _windows(blocks: torch.Tensor, neighbours: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return (num_blocks, len(neighbours) * size, ...): each block (size, ...) between its neighbours in its sequence.

    A block of another request is replaced by zeros, and not only masked, so that not even its NaN gets in.
    """
    num_blocks = blocks.shape[0]
    own = torch.arange(num_blocks, device=blocks.device)
    sources = [torch.where(seen.flatten(1).any(dim=1), own + by, num_blocks) for by, seen in neighbours]
    and_zeros = torch.cat((blocks, blocks.new_zeros(1, *blocks.shape[1:])))
    windows = and_zeros.index_select(0, torch.stack(sources, dim=1).flatten())
    return windows.view(num_blocks, -1, *blocks.shape[2:])


# Blocks in one call per thread, about one request of 2.5 s: more is no faster, and then the first waveforms come later
# and threads wait longer for each other.
BLOCKS_PER_THREAD = 24


class CpuPlatform(Platform):
    """torch's operations, with oneDNN's linear layers for float32 and eager execution."""

    def __init__(self, execution: Execution, precision: Precision) -> None:
        self.num_workers: int = torch.get_num_threads() if execution == "eager" else 1
        self._has_onednn = execution == "eager" and precision == "float32"

    def get_max_blocks(self, num_blocks: int) -> int:
        """Return a share of all blocks, so that there are batches for all workers."""
        threads_per_worker: int = torch.get_num_threads() // self.num_workers
        return min(BLOCKS_PER_THREAD * threads_per_worker, -(-num_blocks // self.num_workers))

    def make_linear(self, linear: nn.Linear, gelu: nn.GELU | None = None) -> nn.Module:
        return OneDnnLinear(linear, gelu) if self._has_onednn else super().make_linear(linear, gelu)
