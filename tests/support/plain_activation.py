"""The activation and the mean of a packed vocoder in plain torch, which the kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniSnakeBeta,
)

# Sequences of 90 frames, with and without gaps between them.
SEQUENCES = ((0, 4), (12, 13), (24, 36), (36, 88))
NUM_FRAMES = 90


class PlainActivation:
    """`module` of each sequence on its own, zeros in between: what the fused kernel computes."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(
        self, x: torch.Tensor, bounds: torch.Tensor, rate: int,
        *, bias: torch.Tensor, phases_in: int = 1, phases_out: int = 1,
    ) -> torch.Tensor:  # fmt: skip
        given = in_phases(x, len(x) // phases_in) + bias
        out = torch.zeros_like(given)
        for start, end in bounds[:, bounds[1] > bounds[0]].unique(dim=1).mT.tolist():
            sequence = slice(start * rate, end * rate)
            out[sequence] = self.module(given[sequence].mT[None])[0].mT
        return in_phases(out, phases_out)


def plain_mean(
    parts: Sequence[torch.Tensor], bias: torch.Tensor, bounds: torch.Tensor, rate: int, *, share: float = 1.0
) -> torch.Tensor:
    sounds = (bounds[1] > bounds[0])[:, None].repeat_interleave(rate, dim=0)
    return (sum(parts) * share + bias).where(sounds, 0.0)


def in_phases(rows: torch.Tensor, phases: int) -> torch.Tensor:
    """Rows 0, p, 2p, ..., 1, p + 1, ... for `phases` p; with as many as a phase has rows, the order before."""
    return rows.view(-1, phases, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


@torch.inference_mode()
def fused_and_plain(
    channels: int, rate: int, phases_in: int, phases_out: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the fused kernel makes of random samples in `dtype`, and plain torch's answer in float32."""
    from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder_kernels import FusedActivation

    torch.manual_seed(0)
    module = Qwen2_5OmniAntiAliasedActivation1d(activation=Qwen2_5OmniSnakeBeta(channels)).to(device)
    module.act.alpha.data.normal_(0, 0.5)
    module.act.beta.data.normal_(0, 0.5)
    bounds = torch.zeros(2, NUM_FRAMES, dtype=torch.int32, device=device)
    for start, end in SEQUENCES:
        bounds[0, start:end], bounds[1, start:end] = start, end
    x, bias = (torch.randn(*shape, device=device).to(dtype) for shape in ((NUM_FRAMES * rate, channels), (channels,)))
    phases = {"phases_in": phases_in, "phases_out": phases_out}
    made = FusedActivation(module)(x, bounds, rate, bias=bias, **phases)
    return made, PlainActivation(module)(x.float(), bounds, rate, bias=bias.float(), **phases)
