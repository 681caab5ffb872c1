"""The activation of a packed vocoder in plain torch, which the fused kernel is compared with."""

from __future__ import annotations

import torch
from torch import nn


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


def in_phases(rows: torch.Tensor, phases: int) -> torch.Tensor:
    """Rows 0, p, 2p, ..., 1, p + 1, ... for `phases` p; with as many as a phase has rows, the order before."""
    return rows.view(-1, phases, rows.shape[1]).transpose(0, 1).reshape(rows.shape)
