"""The vocoder's layers on a CPU, over samples in rows of channels: (1, channels, num_samples) in channels-last memory.

oneDNN convolves those rows up to six times as fast as sequences of samples. The filters of transformers' activations
are convolutions of one channel each, which it runs at a small share of its rate; as matrix products over short blocks
of samples they do more arithmetic and take a third of the time.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAntiAliasedActivation1d

from omni_cli.execution.cpu_linear import OneDnnLinear

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
        self._constant = 0.5 / (snake.beta.exp() + snake.no_div_by_zero)
        self._speed = (2 * snake.alpha.exp())[:, None]

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return float32 of the shape of `samples`, (1, channels, num_samples)."""
        with torch.autocast(samples.device.type, enabled=False):
            return self._activated(samples[0].mT.float()).mT[None]

    def _activated(self, rows: torch.Tensor) -> torch.Tensor:
        num_samples, channels = rows.shape
        num_blocks = -(-num_samples // _BLOCK)
        padded = rows.new_empty(num_blocks * _BLOCK + 2 * _HALO, channels)
        padded[_HALO : _HALO + num_samples] = rows
        padded[:_HALO] = rows[0]
        padded[_HALO + num_samples :] = rows[-1]
        windows = padded.unfold(0, _WINDOW, _BLOCK)
        made = rows.new_empty(num_blocks, _BLOCK, channels)
        at_once = max(1, _CACHED // (channels * _FINE))
        for first in range(0, num_blocks, at_once):
            part = slice(first, first + at_once)
            fine = self._snaked(windows[part], first, num_samples)
            torch.add(self._down(fine).mT, self._constant, out=made[part])
        return made.view(-1, channels)[:num_samples]

    def _snaked(self, windows: torch.Tensor, first: int, num_samples: int) -> torch.Tensor:
        """Return values at twice the rate, (num_blocks, channels, _FINE), of those blocks' windows, the `first` on."""
        fine = self._up(windows.contiguous())
        if first == 0:
            fine[0, :, :_HALO] = fine[0, :, _HALO, None]
        for block, values in enumerate(fine[-2:], first + len(fine) - len(fine[-2:])):
            end = 2 * (num_samples - block * _BLOCK) + _HALO
            if end < _FINE:
                values[:, end:] = values[:, end - 1, None]
        wave = (fine * self._speed).cos_()
        return fine.addcmul_(wave, self._constant[:, None], value=-1.0)


def _product(matrix: torch.Tensor) -> OneDnnLinear:
    linear = nn.Linear(*matrix.shape, bias=False, device="meta")
    linear.weight = nn.Parameter(matrix.mT.contiguous(), requires_grad=False)
    return OneDnnLinear(linear)


class RowsConvolution(nn.Module):
    """Replaces a convolution `conv`: samples are the pixels of an image of one row, whose channels lie together."""

    def __init__(self, conv: nn.Conv1d | nn.ConvTranspose1d) -> None:
        super().__init__()
        kind = nn.Conv2d if isinstance(conv, nn.Conv1d) else nn.ConvTranspose2d
        (size,), (stride,), (padding,), (dilation,) = conv.kernel_size, conv.stride, conv.padding, conv.dilation
        self._conv = kind(
            conv.in_channels, conv.out_channels, (1, size), (1, stride), (0, int(padding)), dilation=(1, dilation),
            bias=conv.bias is not None, device="meta",
        )  # fmt: skip
        weight = conv.weight[:, :, None].contiguous(memory_format=torch.channels_last)
        self._conv.weight, self._conv.bias = nn.Parameter(weight, requires_grad=False), conv.bias

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return (1, out_channels, num_samples) of `samples` (1, in_channels, num_samples)."""
        made: torch.Tensor = self._conv(samples[:, :, None].contiguous(memory_format=torch.channels_last))
        return made[:, :, 0]


def use_rows(vocoder: nn.Module) -> None:
    """Replace the layers of transformers' BigVGAN `vocoder`."""
    for parent in list(vocoder.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Qwen2_5OmniAntiAliasedActivation1d):
                setattr(parent, name, BandedActivation(layer))
            elif isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                setattr(parent, name, RowsConvolution(layer))
