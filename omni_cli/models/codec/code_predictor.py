"""The codes of a frame after the first: a small decoder that runs once per codebook within each step of a talker.

The backbone samples the first code of a frame. From its last hidden state and that code, the predictor draws the code
of each further codebook, each with its own embedding and head. The sum of all codes' embeddings is the backbone's next
input. The layers are transformers'; this adds what a step needs: all requests of the step at once, a KV cache that is
allocated once, and draws that depend on the request only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.cuda_graphs import RowGraphs
from omni_cli.backends.execution.graphs import GraphBackend, batch_sizes


@dataclass(frozen=True)
class CodeNetwork:
    """Modules of one model's predictor.

    `embed(index, codes)` looks up codes (batch,) of codebook `index`, 0 for the backbone's, as rows of the backbone's
    width; `project` maps such rows to the width of the `layers`. `head(index, hidden)` computes the logits of codebook
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
    """The reference's sampling, for requests that are not greedy."""

    top_k: int
    top_p: float
    temperature: float = 1.0


@dataclass(frozen=True)
class Positions:
    """The positions that a call of the layers computes, one per codebook; the same for all frames.

    `indices` (num_new,) int64, the rotary embedding of each, and `mask` (1, 1, num_new, num_codebooks), True for the
    positions that it attends to.
    """

    indices: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    mask: torch.Tensor


class FrameCache:
    """Keys and values of one frame's codebooks, with the interface of transformers' cache.

    Per layer (batch, num_heads, num_codebooks, head_dim). Each call gets all positions, so that shapes are constant;
    the mask hides those that are not computed yet.
    """

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], indices: torch.Tensor) -> None:
        self._keys, self._values, self._indices = keys, values, indices

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values (batch, num_heads, num_new, head_dim) of a layer; return those of all positions."""
        held = self._keys[layer_idx], self._values[layer_idx]
        held[0].index_copy_(2, self._indices, keys)
        held[1].index_copy_(2, self._indices, values)
        return held


class CodePredictor(nn.Module):
    """Draws the codes of a frame for the requests of a step. Shapes depend only on the number of requests."""

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
        # Not as a module attribute: the weights belong to the model, which loads them by its own names.
        self._network = (network,)
        self._sampling = sampling
        self.num_codebooks, self.max_batch, self.device = num_codebooks, max_batch, device
        config = network.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (max_batch, config.num_key_value_heads, num_codebooks, head_dim)
        # Separate memory per tensor, because compiled code would treat views of a common one as aliases of each other.
        self._keys, self._values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in network.layers] for _ in range(2)
        )
        indices = torch.arange(num_codebooks, device=device)
        cos, sin = network.rotary_emb(torch.empty(0, dtype=dtype, device=device), indices[None])
        visible = indices <= indices[:, None]

        def positions(start: int, end: int) -> Positions:
            rotary = (cos[:, start:end].clone(), sin[:, start:end].clone())
            return Positions(indices[start:end].clone(), rotary, visible[None, None, start:end].clone())

        self._calls = [positions(0, 2), *(positions(index, index + 1) for index in range(2, num_codebooks))]
        self._run_layers, self._choose = self._decode, self._draw

    def compile_parts(self) -> None:
        """Compile the layers and the draw, each once for all numbers of requests except one."""
        self._run_layers = torch.compile(self._decode, fullgraph=True)
        self._choose = torch.compile(self._draw, fullgraph=True)

    def forward(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None = None,
        is_greedy: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes (batch, num_codebooks) int64, and the sum of their embeddings without the first's,
        (batch, hidden_size).

        `hidden` (batch, hidden_size) and `first_codes` (batch,) come from the backbone. `draws` (batch,
        num_codebooks - 1) are numbers in [0, 1), one per code, and `is_greedy` (batch, 1) selects the rows that do not
        use them; without draws, all rows are greedy.
        """
        (network,) = self._network
        rows = torch.stack([hidden, network.embed(0, first_codes)], dim=1)
        codes, total = [first_codes], torch.zeros_like(hidden)
        keys, values = ([tensor[: len(hidden)] for tensor in cache] for cache in (self._keys, self._values))
        # Nothing of an earlier frame may affect this one, not even a NaN behind the mask.
        torch._foreach_zero_([*keys, *values])
        for index, positions in enumerate(self._calls, start=1):
            _allow_other_batches(rows, *keys, *values)
            logits = network.head(index, self._run_layers(rows, keys, values, positions))
            if draws is None or is_greedy is None:
                code = logits.argmax(dim=-1)
            else:
                drawn = draws[:, index - 1 : index].contiguous()
                _allow_other_batches(logits, drawn, is_greedy)
                code = self._choose(logits, drawn, is_greedy)
            row = network.embed(index, code)
            codes.append(code)
            total = total + row
            rows = row[:, None]
        return torch.stack(codes, dim=1), total

    def _decode(
        self,
        rows: torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        positions: Positions,
    ) -> torch.Tensor:
        """Return the hidden state (batch, hidden_size) of the last of `rows` (batch, num_new, backbone width)."""
        (network,) = self._network
        cache = FrameCache(keys, values, positions.indices)
        hidden = network.project(rows)
        for layer in network.layers:
            hidden = layer(
                hidden, attention_mask=positions.mask, past_key_values=cache, position_embeddings=positions.rotary
            )
        last: torch.Tensor = network.norm(hidden[:, -1])
        return last

    def _draw(self, logits: torch.Tensor, draws: torch.Tensor, is_greedy: torch.Tensor) -> torch.Tensor:
        """Draw one code per row by inverting the distribution function of the most probable codes."""
        sampling = self._sampling
        scaled = logits.float() / sampling.temperature
        top, ids = scaled.topk(min(sampling.top_k, logits.shape[-1]), dim=-1)
        probabilities = top.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        kept = probabilities.masked_fill(before >= sampling.top_p, 0.0)
        reached = kept.cumsum(dim=-1)
        # Rounding must not lead past the last kept code.
        chosen = (reached <= draws * reached[:, -1:]).sum(dim=-1, keepdim=True)
        chosen = torch.minimum(chosen, (kept > 0).sum(dim=-1, keepdim=True) - 1)
        return ids.gather(-1, chosen.masked_fill(is_greedy, 0)).squeeze(-1)


def make_code_predictor(config: Any, width: int) -> nn.Module:
    """Create the code predictor of Qwen3-Omni and Qwen3-TTS, with a projection if the talker's `width` is another."""
    predictor: Any = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration._from_config(
        config, dtype=torch.get_default_dtype()
    )
    if config.hidden_size != width:
        tables = [nn.Embedding(config.vocab_size, width) for _ in range(config.num_code_groups - 1)]
        predictor.model.codec_embedding = nn.ModuleList(tables)
        predictor.small_to_mtp_projection = nn.Linear(width, config.hidden_size)
    made: nn.Module = predictor
    return made


def _allow_other_batches(*tensors: torch.Tensor) -> None:
    """Let code that is compiled for these tensors accept any number of requests."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


# Graphs for fewer requests are slower: cuBLAS has faster matrix products for eight rows than for two.
SMALLEST = 8


class PredictorGraphs:
    """Has the interface of its predictor, and replays graphs once they are captured.

    There are two graphs per size: for steps whose requests are all greedy, and for others.
    """

    def __init__(self, predictor: CodePredictor) -> None:
        self.predictor = predictor
        self._graphs = RowGraphs()

    @property
    def counters(self) -> ExecutionCounters:
        return self._graphs.counters

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, hidden: torch.Tensor) -> None:
        """Capture the graphs of all sizes; `hidden` (max_batch, hidden_size) is an example of the backbone's."""
        num_later = self.predictor.num_codebooks - 1
        for size in batch_sizes(len(hidden), SMALLEST):
            firsts = torch.zeros(size, dtype=torch.long, device=hidden.device)
            greedy = [hidden[:size].clone(), firsts]
            draws = torch.full((size, num_later), 0.5, device=hidden.device)
            is_greedy = torch.zeros((size, 1), dtype=torch.bool, device=hidden.device)
            for inputs in (greedy, [*(tensor.clone() for tensor in greedy), draws, is_greedy]):
                self._graphs.capture(backend, len(inputs), self.predictor, inputs)

    def __call__(
        self,
        hidden: torch.Tensor,
        first_codes: torch.Tensor,
        draws: torch.Tensor | None,
        is_greedy: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `CodePredictor.forward`; the results belong to the caller."""
        inputs = [hidden, first_codes]
        if draws is not None and is_greedy is not None:
            inputs += [draws, is_greedy]
        codes, rows = self._graphs.run(len(inputs), self.predictor, len(hidden), inputs)
        return codes, rows
