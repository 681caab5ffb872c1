"""The codes of a frame after the first: a small decoder that runs once per codebook within each step of a talker.

The backbone samples the first code of a frame. From its last hidden state and that code, the predictor draws the code
of each further codebook, each with its own embedding and head. The sum of all codes' embeddings is the backbone's next
input. The layers are transformers'; this adds what a step needs: all requests of the step at once, products of as many
rows as there are, and draws that depend on the request only. On a GPU a frame is many small kernels, whose number is
its time: no mask and no copies for heads that share keys, because a call is given the positions before it only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
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


Layers = Sequence[tuple[torch.Tensor, torch.Tensor]]
# cuDNN's attention, which torch may prefer, plans for each number of positions.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class FrameCache:
    """Keys and values of a frame's codes, with the interface of transformers' cache.

    `before` are those of each layer, (batch, num_heads, num_positions, head_dim), and empty in a frame's first call;
    `layers` are all of them after a call.
    """

    def __init__(self, before: Layers) -> None:
        self._before = before
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._before:
            before = self._before[layer_idx]
            self.layers.append((torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)))
        else:
            self.layers.append((keys.contiguous(), values.contiguous()))
        return self.layers[-1]


class StackedLinear(nn.Module):
    """Linear layers that take the same rows, as one product: it has the name of each, and is called in their order."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        super().__init__()
        # No parameter, of which vLLM would want a weight in the checkpoint.
        self.weight = nn.Buffer(torch.cat([part.weight.data for part in parts]), persistent=False)
        self._sizes = [part.out_features for part in parts]
        self._later: list[torch.Tensor] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made = self._later or list(nn.functional.linear(rows, self.weight).split(self._sizes, dim=-1))
        self._later = made[1:]
        return made[0]


def stack_projections(layers: nn.ModuleList) -> None:
    """Make the products of transformers' decoder layers as few as vLLM's, under its names."""
    for layer in layers:
        for module, merged, names in (
            (layer.self_attn, "qkv_proj", ("q_proj", "k_proj", "v_proj")),
            (layer.mlp, "gate_up_proj", ("gate_proj", "up_proj")),
        ):
            parts = [getattr(module, name) for name in names]
            if any(part.bias is not None for part in parts):
                continue
            stacked = StackedLinear(parts)
            for name in names:
                delattr(module, name)
            for name in (merged, *names):
                setattr(module, name, stacked)


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
        indices = torch.arange(num_codebooks, device=device)
        cos, sin = network.rotary_emb(torch.empty(0, dtype=dtype, device=device), indices[None])
        ends = range(2, num_codebooks + 1)
        # Of the positions that each call computes; separate memory, or compiled code would check for aliases.
        self._rotary = [tuple(part[:, end - 1 if end > 2 else 0 : end].clone() for part in (cos, sin)) for end in ends]
        self._run_layers, self._choose = self._decode, self._draw

    def compile_parts(self) -> None:
        """Compile the layers and the draw, each once for all numbers of requests except one."""
        self._run_layers = torch.compile(self._decode, fullgraph=True)
        self._choose = torch.compile(self._draw, fullgraph=True)

    @sdpa_kernel(_ATTENTION)
    def forward(
        self, hidden: torch.Tensor, first_codes: torch.Tensor, draws: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes (batch, num_codebooks) int64, and the sum of their embeddings without the first's,
        (batch, hidden_size).

        `hidden` (batch, hidden_size) and `first_codes` (batch,) come from the backbone. `draws` (batch,
        num_codebooks - 1) are numbers in [0, 1), one per code, of which 0 is the most probable; without draws, all are.
        """
        (network,) = self._network
        rows = torch.stack([hidden, network.embed(0, first_codes)], dim=1)
        codes, embedded = [first_codes], []
        layers: Layers = ()
        for index, rotary in enumerate(self._rotary, start=1):
            _allow_other_sizes(rows, *(tensor for pair in layers for tensor in pair))
            last, layers = self._run_layers(rows, layers, rotary)
            logits = network.head(index, last)
            if draws is None:
                code = logits.argmax(dim=-1)
            else:
                drawn = draws[:, index - 1 : index].contiguous()
                _allow_other_sizes(logits, drawn)
                code = self._choose(logits, drawn)
            codes.append(code)
            embedded.append(network.embed(index, code))
            rows = embedded[-1][:, None]
        return torch.stack(codes, dim=1), torch.stack(embedded).sum(dim=0)

    def _decode(
        self, rows: torch.Tensor, layers: Layers, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, Layers]:
        """Return the hidden state (batch, hidden_size) of the last of `rows` (batch, num_new, backbone width)."""
        (network,) = self._network
        cache = FrameCache(layers)
        hidden = network.project(rows)
        for layer in network.layers:
            # Without a mask, the first call's rows are causal.
            hidden = layer(hidden, past_key_values=cache, position_embeddings=rotary)
        return network.norm(hidden[:, -1]), cache.layers

    def _draw(self, logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Draw one code per row by inverting the distribution function of the most probable codes."""
        sampling = self._sampling
        top, ids = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1)
        kept = (top.float() / sampling.temperature).softmax(dim=-1)
        if sampling.top_p < 1:
            before = kept.cumsum(dim=-1) - kept
            kept = kept.masked_fill(before >= sampling.top_p, 0.0)
        reached = kept.cumsum(dim=-1)
        # Rounding must not lead past the last kept code.
        chosen = (reached <= draws * reached[:, -1:]).sum(dim=-1, keepdim=True)
        return ids.gather(-1, torch.minimum(chosen, (kept > 0).sum(dim=-1, keepdim=True) - 1)).squeeze(-1)


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


def _allow_other_sizes(*tensors: torch.Tensor) -> None:
    """Let code that is compiled for these tensors accept any number of requests, and of a frame's positions so far."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
        if tensor.ndim == 4:
            torch._dynamo.maybe_mark_dynamic(tensor, 2)


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
        for size in batch_sizes(len(hidden), SMALLEST):
            firsts = torch.zeros(size, dtype=torch.long, device=hidden.device)
            draws = torch.full((size, self.predictor.num_codebooks - 1), 0.5, device=hidden.device)
            for given in ((), (draws,)):
                inputs = [hidden[:size].clone(), firsts.clone(), *given]
                self._graphs.capture(backend, len(inputs), self.predictor, inputs)

    def __call__(
        self, hidden: torch.Tensor, first_codes: torch.Tensor, draws: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `CodePredictor.forward`; the results belong to the caller."""
        inputs = [hidden, first_codes] if draws is None else [hidden, first_codes, draws]
        codes, rows = self._graphs.run(len(inputs), self.predictor, len(hidden), inputs)
        return codes, rows
