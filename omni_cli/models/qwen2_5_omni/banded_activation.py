"""The vocoder's anti-aliased activation on a CPU: both filters as matrix products over short blocks of samples.

transformers' filters are convolutions of one channel each, which oneDNN runs at a small share of its rate, with padded
copies before and cut ones after. A product does more arithmetic and takes a third of the time.
"""

from __future__ import annotations

import torch
from torch import nn

from omni_cli.execution.onednn import OneDnnLinear

# Samples per block. Each is computed from `_HALO` samples on either side, so short blocks repeat more work.
_BLOCK = 32
_HALO = 6
_WINDOW = _BLOCK + 2 * _HALO
# A window at twice the rate without the ends, which the window is too short for.
_FINE = 2 * _BLOCK + 2 * _HALO
# Values at twice the rate that are computed at once, 1 MiB, so that they stay in a cache.
_CACHED = 1 << 18


class BandedActivation(nn.Module):
    """Has the result of transformers' `Qwen2_5OmniAntiAliasedActivation1d`, except for rounding."""

    @torch.no_grad()
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        snake = activation.act
        # The filters' own responses to a single sample, away from the ends.
        raised = activation.upsample(torch.eye(_WINDOW)[:, None])[:, 0]
        self._up = _product(raised[:, _HALO : _HALO + _FINE])
        lowered = activation.downsample(torch.eye(_FINE)[:, None])[:, 0]
        self._down = _product(lowered[:, _HALO // 2 : _HALO // 2 + _BLOCK])
        # Snake, y + sin(a * y)^2 / b, is y - cos(2 * a * y) / (2 * b) + 1 / (2 * b); the filter after it keeps the
        # constant, so that it is added at the lower rate.
        self._constant = (0.5 / (snake.beta.exp() + snake.no_div_by_zero))[:, None, None]
        self._speed = (2 * snake.alpha.exp())[:, None, None]

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return float32 of the shape of `samples`, (1, channels, num_samples)."""
        with torch.autocast(samples.device.type, enabled=False):
            return self._activated(samples[0].float())[None]

    def _activated(self, samples: torch.Tensor) -> torch.Tensor:
        channels, num_samples = samples.shape
        num_blocks = -(-num_samples // _BLOCK)
        made = samples.new_empty(channels, num_blocks * _BLOCK)
        at_once = max(1, _CACHED // (num_blocks * _FINE))
        for first in range(0, channels, at_once):
            part = slice(first, first + at_once)
            fine = self._snaked(samples[part], part, num_blocks)
            lowered = self._down(fine).view(fine.shape[0], -1)
            torch.add(lowered, self._constant[part, 0], out=made[part])
        return made[:, :num_samples]

    def _snaked(self, samples: torch.Tensor, part: slice, num_blocks: int) -> torch.Tensor:
        """Return (channels, num_blocks, _FINE) at twice the rate."""
        channels, num_samples = samples.shape
        constant, speed = self._constant[part], self._speed[part]
        padded = samples.new_empty(channels, num_blocks * _BLOCK + 2 * _HALO)
        padded[:, _HALO : _HALO + num_samples] = samples
        padded[:, :_HALO] = padded[:, _HALO, None]
        padded[:, _HALO + num_samples :] = padded[:, _HALO + num_samples - 1, None]
        windows = padded.unfold(1, _WINDOW, _BLOCK).reshape(-1, _WINDOW)
        fine = self._up(windows).view(channels, num_blocks, _FINE)
        fine[:, 0, :_HALO] = fine[:, 0, _HALO, None]
        for block in range(max(0, num_blocks - 2), num_blocks):
            end = min(2 * (num_samples - block * _BLOCK) + _HALO, _FINE)
            fine[:, block, end:] = fine[:, block, end - 1, None]
        wave = (fine * speed).cos_()
        return fine.addcmul_(wave, constant, value=-1.0)


def _product(matrix: torch.Tensor) -> OneDnnLinear:
    linear = nn.Linear(*matrix.shape, bias=False, device="meta")
    linear.weight = nn.Parameter(matrix.mT.contiguous(), requires_grad=False)
    return OneDnnLinear(linear)


def use_banded_activations(vocoder: nn.Module) -> None:
    """Replace all activations of transformers' BigVGAN `vocoder`."""
    for block in vocoder.resblocks:
        block.activations = nn.ModuleList(BandedActivation(each) for each in block.activations)
    vocoder.activation_post = BandedActivation(vocoder.activation_post)
