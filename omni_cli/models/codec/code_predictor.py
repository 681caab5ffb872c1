"""The codes of a frame after the first: a small decoder that runs once per codebook inside each step of a talker.

The backbone samples the first code of a frame. From its last hidden state and that code, the predictor draws the code
of each further codebook, each with its own embedding and its own head. The embeddings of all codes, added up, are the
backbone's next input. The layers are transformers' own; this adds what a step needs: all requests of the step at once,
a KV cache that is allocated once, and draws that depend on nothing but the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class CodeNetwork:
    """Modules of one model's predictor.

    `embed(index, codes)` looks up codes (batch,) of codebook `index`, 0 for the backbone's, as rows of the backbone's
    width; `project` takes such rows to the width of the `layers`. `head(index, hidden)` are the logits of codebook
    `index`, from 1 on. `config` is that of the layers.
    """

    config: Any
    layers: nn.ModuleList
    norm: nn.Module
    rotary_emb: nn.Module
    embed: Callable[[int, torch.Tensor], torch.Tensor]
    head: Callable[[int, torch.Tensor], torch.Tensor]
    project: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows


@dataclass(frozen=True)
class CodeSampling:
    """The reference's sampling of a request that is not greedy."""

    top_k: int
    top_p: float
    temperature: float = 1.0


class FrameCache:
    """Keys and values of one frame's codebooks, (num_layers, 2, batch, num_heads, num_positions, head_dim).

    Each frame overwrites the last one's. The layers see it as transformers' cache.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(shape, dtype=dtype, device=device)
        self._start = self._end = 0

    def at(self, start: int, end: int) -> None:
        """Positions [start, end) come next."""
        self._start, self._end = start, end

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep keys and values (batch, num_heads, num_new, head_dim) of a layer; return those of all positions."""
        batch = keys.shape[0]
        rows = self._rows[layer_idx, :, :batch]
        rows[0, :, :, self._start : self._end].copy_(keys)
        rows[1, :, :, self._start : self._end].copy_(values)
        return rows[0, :, :, : self._end], rows[1, :, :, : self._end]


class CodePredictor(nn.Module):
    """Draws the codes of a frame for the requests of a step. Shapes depend on the number of requests alone."""

    def __init__(
        self,
        network: CodeNetwork,
        *,
        num_codebooks: int,
        max_batch: int,
        sampling: CodeSampling,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        # Not as attributes: the weights belong to the model, which loads them by its own names.
        self._network = (network,)
        self._sampling = sampling
        self.num_codebooks = num_codebooks
        config = network.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(network.layers), 2, max_batch, config.num_key_value_heads, num_codebooks, head_dim)
        self._cache = FrameCache(shape, dtype, device)
        positions = torch.arange(num_codebooks, device=device)[None]
        cos, sin = network.rotary_emb(torch.empty(0, dtype=dtype, device=device), positions)
        self._cos, self._sin = cos.clone(), sin.clone()

    def forward(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None = None,
        is_greedy: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (batch, num_codebooks) int64, and the sum of their embeddings but the first's, (batch, hidden_size).

        `hidden` (batch, hidden_size) and `first_codes` (batch,) come from the backbone. `draws` (batch,
        num_codebooks - 1) are numbers in [0, 1), one per code; without them all is greedy, with them what `is_greedy`
        (batch, 1) says.
        """
        (network,) = self._network
        rows = torch.stack([hidden, network.embed(0, first_codes)], dim=1)
        codes, total = [first_codes], torch.zeros_like(hidden)
        start = 0
        for index in range(1, self.num_codebooks):
            logits = network.head(index, self._decode(rows, start))
            start += rows.shape[1]
            if draws is None or is_greedy is None:
                code = logits.argmax(dim=-1)
            else:
                code = self._draw(logits, draws[:, index - 1 : index], is_greedy)
            row = network.embed(index, code)
            codes.append(code)
            total = total + row
            rows = row[:, None]
        return torch.stack(codes, dim=1), total

    def _decode(self, rows: torch.Tensor, start: int) -> torch.Tensor:
        """Hidden state (batch, hidden_size) of the last of `rows` (batch, num_new, backbone width)."""
        (network,) = self._network
        end = start + rows.shape[1]
        self._cache.at(start, end)
        hidden = network.project(rows)
        for layer in network.layers:
            hidden = layer(
                hidden,
                attention_mask=None,
                past_key_values=self._cache,
                position_embeddings=(self._cos[:, start:end], self._sin[:, start:end]),
            )
        last: torch.Tensor = network.norm(hidden[:, -1])
        return last

    def _draw(self, logits: torch.Tensor, draws: torch.Tensor, is_greedy: torch.Tensor) -> torch.Tensor:
        """One code per row, by the inverse of the distribution function of the most probable codes."""
        sampling = self._sampling
        scaled = logits.float() / sampling.temperature
        top, ids = scaled.topk(min(sampling.top_k, logits.shape[-1]), dim=-1)
        probabilities = top.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        kept = probabilities.masked_fill(before >= sampling.top_p, 0.0)
        reached = kept.cumsum(dim=-1)
        # Rounding must not lead past the last one that is kept.
        chosen = (reached <= draws * reached[:, -1:]).sum(dim=-1, keepdim=True)
        chosen = torch.minimum(chosen, (kept > 0).sum(dim=-1, keepdim=True) - 1)
        return ids.gather(-1, chosen.masked_fill(is_greedy, 0)).squeeze(-1)
