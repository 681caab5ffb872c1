"""The codes of a frame after the first: a small decoder that runs once per codebook within each step of a talker.

The backbone samples the first code of a frame. From its last hidden state and that code, the predictor draws the code
of each further codebook, each with its own embedding and head. The sum of all codes' embeddings is the backbone's next
input. The layers are transformers'; this adds what a step needs: all requests of the step at once, products of as many
rows as there are, and draws that depend on the request only. On a GPU a frame is many small kernels, whose number is
its time: no mask and no copies for heads that share keys, because a call is given the positions before it only. Where
`FrameKernel` has the layers' operations, the graphs have it in place of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omni_cli.backends.execution.cuda_graphs import RowGraphs
from omni_cli.backends.execution.graphs import GraphBackend, batch_sizes
from omni_cli.models.codec.frame_kernel import FrameKernel
from omni_cli.models.codec.streaming import KeyValueCache

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CodeNetwork:
    """Modules of one model's predictor.

    `embed(index, codes)` looks up codes (batch,) of codebook `index`, 0 for the backbone's, as rows of the backbone's
    width; `project` maps such rows to the width of the `layers`. `head(index, hidden)` computes the logits of codebook
    `index`, from 1 on.
    """

    layers: nn.ModuleList
    norm: nn.Module
    rotary_emb: nn.Module
    embed: Callable[[int, torch.Tensor], torch.Tensor]
    head: Callable[[int, torch.Tensor], torch.Tensor]
    project: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows


@dataclass(frozen=True)
class CodeSampling:
    """The reference's sampling, for requests that are not greedy; `top_k` 0 keeps all codes."""

    top_k: int
    top_p: float
    temperature: float = 1.0


class StackedLinear(nn.Module):
    """Linear layers of the same rows as one product: it has the place of each of them, and they are called in order.

    `parts` are by vLLM's names of their shards.
    """

    def __init__(self, parts: Mapping[str | int, nn.Linear]) -> None:
        super().__init__()
        self._sizes = {shard: part.out_features for shard, part in parts.items()}
        example = next(iter(parts.values())).weight
        weight: Any = nn.Parameter(example.new_empty(sum(self._sizes.values()), example.shape[1]), requires_grad=False)
        weight.weight_loader = self._load
        self.weight = weight
        self._later: list[torch.Tensor] = []

    def _load(self, weight: torch.Tensor, loaded: Any) -> None:
        parts = dict(zip(self._sizes, weight.data.split(list(self._sizes.values())), strict=True))
        parts[loaded.shard_id].copy_(loaded)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self._later:
            self._later = list(nn.functional.linear(rows, self.weight).split(list(self._sizes.values()), dim=-1))
        first, *self._later = self._later
        return first


def stack_projections(layers: nn.ModuleList) -> None:
    """Give transformers' layers as few products as vLLM's have, with vLLM's names for their weights, not loaded yet."""
    for layer in layers:
        for module, merged, names in (
            (layer.self_attn, "qkv_proj", {"q": "q_proj", "k": "k_proj", "v": "v_proj"}),
            (layer.mlp, "gate_up_proj", {0: "gate_proj", 1: "up_proj"}),
        ):
            stacked = StackedLinear({shard: getattr(module, name) for shard, name in names.items()})
            for name in names.values():
                delattr(module, name)
            for name in (merged, *names.values()):
                setattr(module, name, stacked)


# cuDNN's attention, which torch may prefer, plans for each number of positions.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Graphs for fewer requests are slower: cuBLAS has faster matrix products for eight rows than for two.
SMALLEST = 8


class CodePredictor:
    """Draws the codes of a frame for the requests of a step. Shapes depend only on the number of requests.

    Calls replay CUDA graphs once captured: per size one of a `FrameKernel`, or two, for all greedy steps and others.
    """

    def __init__(self, network: CodeNetwork, num_codebooks: int, sampling: CodeSampling) -> None:
        self._network, self._sampling, self.num_codebooks = network, sampling, num_codebooks
        weight = next(network.layers.parameters())
        cos, sin = network.rotary_emb(weight.new_empty(0), torch.arange(num_codebooks, device=weight.device)[None])
        ends = range(2, num_codebooks + 1)
        # Of the positions that each call computes; separate memory, or compiled code would check for aliases.
        self._rotary = [tuple(part[:, end - 1 if end > 2 else 0 : end].clone() for part in (cos, sin)) for end in ends]
        self._run_layers, self._choose = self._decode, self._draw
        self._kernel: FrameKernel | None = None
        self._graphs = RowGraphs()
        self.counters = self._graphs.counters

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, hidden: torch.Tensor) -> None:
        """Capture the graphs of all sizes; `hidden` (max_batch, hidden_size) is an example of the backbone's."""
        if FrameKernel.suits(self._network, self.num_codebooks, self._sampling.top_k):
            kernel = FrameKernel(self._network, self.num_codebooks, self._sampling, len(hidden))
            try:
                kernel.compile()
                self._kernel = kernel
            except (OSError, RuntimeError) as error:
                logger.warning("frames take longer, since their kernel cannot be compiled: %s", error)
        for size in batch_sizes(len(hidden), SMALLEST):
            firsts = torch.zeros(size, dtype=torch.long, device=hidden.device)
            draws = torch.full((size, self.num_codebooks - 1), 0.5, device=hidden.device)
            for given in ((draws,),) if self._kernel else ((), (draws,)):
                inputs = [hidden[:size].clone(), firsts.clone(), *given]
                self._graphs.capture(backend, len(inputs), self._kernel or self.forward, inputs)

    def __call__(
        self, hidden: torch.Tensor, first_codes: torch.Tensor, draws: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `forward`; the results belong to the caller."""
        if draws is None and self._kernel:
            draws = hidden.new_zeros((len(hidden), self.num_codebooks - 1), dtype=torch.float32)
        inputs = [hidden, first_codes] if draws is None else [hidden, first_codes, draws]
        codes, rows = self._graphs.run(len(inputs), self.forward, len(hidden), inputs)
        return codes, rows

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
        They may be on the host, and first codes of any type of integers: a graph's inputs take either in one copy.
        """
        network, first_codes = self._network, first_codes.long()
        rows = torch.stack([hidden, network.embed(0, first_codes)], dim=1)
        codes, embedded = [first_codes], []
        layers: list[torch.Tensor] = []
        columns: Sequence[torch.Tensor | None] = [None] * len(self._rotary)
        if draws is not None:
            columns = draws.to(hidden.device, non_blocking=True).T.contiguous()[..., None].unbind()
        for index, (rotary, drawn) in enumerate(zip(self._rotary, columns, strict=True), start=1):
            _allow_other_sizes(rows, *layers)
            last, layers = self._run_layers(rows, layers, rotary)
            logits = network.head(index, last)
            if drawn is None:
                code = logits.argmax(dim=-1)
            else:
                _allow_other_sizes(logits, drawn)
                code = self._choose(logits, drawn)
            codes.append(code)
            embedded.append(network.embed(index, code))
            rows = embedded[-1][:, None]
        return torch.stack(codes, dim=1), torch.stack(embedded).sum(dim=0)

    def _decode(
        self, rows: torch.Tensor, layers: list[torch.Tensor], rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the hidden state (batch, hidden_size) of the last of `rows` (batch, num_new, backbone width)."""
        network, cache = self._network, KeyValueCache(layers)
        hidden = network.project(rows)
        for layer in network.layers:
            # Without a mask, the first call's rows are causal.
            hidden = layer(hidden, past_key_values=cache, position_embeddings=rotary)
        return network.norm(hidden[:, -1]), cache.kept

    def _draw(self, logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Draw one code per row by inverting the distribution function of the most probable codes."""
        sampling = self._sampling
        top, ids = logits.topk(min(sampling.top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
        kept = (top.float() / sampling.temperature).softmax(dim=-1)
        if sampling.top_p < 1:
            before = kept.cumsum(dim=-1) - kept
            kept = kept.masked_fill(before >= sampling.top_p, 0.0)
        reached = kept.cumsum(dim=-1)
        # Rounding must not lead past the last kept code; rows that are not numbers keep none.
        last = (kept > 0).sum(dim=-1, keepdim=True).clamp(min=1) - 1
        chosen = torch.minimum((reached <= draws * reached[:, -1:]).sum(dim=-1, keepdim=True), last)
        # Codes that are as probable come in any order; a greedy request's is the first, as without others beside it.
        first = ids.masked_fill(top < top[:, :1], logits.shape[-1]).amin(dim=-1, keepdim=True)
        return torch.where(draws > 0, ids.gather(-1, chosen), first).squeeze(-1)


def make_code_predictor(config: Any, width: int) -> Any:
    """Create the code predictor of Qwen3-Omni and Qwen3-TTS, with a projection if the talker's `width` is another."""
    predictor: Any = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration._from_config(
        config, dtype=torch.get_default_dtype()
    )
    if config.hidden_size != width:
        tables = [nn.Embedding(config.vocab_size, width) for _ in range(config.num_code_groups - 1)]
        predictor.model.codec_embedding = nn.ModuleList(tables)
        predictor.small_to_mtp_projection = nn.Linear(width, config.hidden_size)
    return predictor


def _allow_other_sizes(*tensors: torch.Tensor) -> None:
    """Let code that is compiled for these tensors accept any number of requests, and of a frame's positions so far."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
        if tensor.ndim == 5:
            torch._dynamo.maybe_mark_dynamic(tensor, 3)
