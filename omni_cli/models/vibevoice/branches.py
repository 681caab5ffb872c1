"""State of each request outside vLLM's KV cache: the branches of the guidance, and the ends of convolutions' inputs.

A request has a slot. Its two branches are sequences of the backbone that do not see the prompt: that of the diffusion
has the inputs of the steps that made sound since speech last began, and that of the control tokens, which transformers
also guides, has all tokens. They start and end apart from the prompt, so they are in a cache of their own: one batch of
both branches of all requests per step, through the layers of vLLM's backbone with attention of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from omni_cli.backends.execution.cuda_graphs import RowGraphs
from omni_cli.backends.execution.graphs import GraphBackend, batch_sizes

# Positions per block; a block belongs to one branch.
_BLOCK = 64
# The block that rows without a request write to.
_SPARE_ROW = 0
# Graphs read a fixed number of blocks per branch: the smallest graph two, and each larger one four times as many as the
# one before it.
_FIRST_WIDTH, _WIDER = 2, 4
# The smallest batch of a graph: a step with fewer rows takes as long, because it reads the weights once as well.
_SMALLEST = 4


class BranchCache:
    """Keys and values of all branches, in blocks that a branch takes as it grows. A branch has at most `max_length`."""

    def __init__(self, decoder: nn.Module, num_branches: int, max_length: int, graphs: RowGraphs) -> None:
        self._decoder = (decoder,)  # not as a submodule: the weights belong to the model
        self._graphs = graphs
        self._lengths, self._num_blocks = np.zeros((2, num_branches), np.int64)
        # Of each branch, its blocks and then its last one again.
        self._tables = np.full((num_branches, -(-max_length // _BLOCK)), _SPARE_ROW)
        self._free: list[int] = []
        self._cache: torch.Tensor  # (num_layers, num_blocks, positions, 2, num_kv_heads, head_dim)
        self._read: torch.Tensor  # a layer's blocks, as one step reads them

    def allocate(self, num_positions: int, like: torch.Tensor) -> None:
        """Make room for `num_positions` of all branches together, and for a block of each that is not full."""
        (decoder,) = self._decoder
        attention = decoder.layers[0].self_attn
        num_branches, width = self._tables.shape
        num_blocks = 1 + min(num_positions // _BLOCK + num_branches, num_branches * width)
        shape = (len(decoder.layers), num_blocks, _BLOCK, 2, attention.num_kv_heads, attention.head_dim)
        self._cache = like.new_zeros(shape)
        self._read = self._cache[0, :0]
        self._free = list(range(num_blocks - 1, _SPARE_ROW, -1))

    def capture(self, backend: GraphBackend, like: torch.Tensor) -> None:
        """Capture the graphs of all numbers of branches at once; `like` is an input row (hidden_size,)."""
        most_at_once = len(self._lengths)
        for width in self._widths():
            for size in batch_sizes(most_at_once, min(_SMALLEST, most_at_once)):
                positions = torch.zeros(size, dtype=torch.long, device=like.device)
                tables = torch.full((size, width), _SPARE_ROW, device=like.device)
                inputs = [like.new_zeros((size, len(like))), positions, tables]
                self._graphs.capture(backend, width, self._step, inputs)

    def clear(self, branch: int) -> None:
        """Forget a branch and give its blocks back."""
        self._free += self._tables[branch, : self._num_blocks[branch]].tolist()
        self._lengths[branch] = self._num_blocks[branch] = 0

    def keep(self, branches: Sequence[int]) -> None:
        """Make the latest row of each branch a part of it; else the next one replaces it."""
        self._lengths[list(branches)] += 1

    def look_ahead(self, branches: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of one input row per branch, (num_branches, hidden_size), at the branches' ends.

        Raises `RuntimeError` if there is no block left.
        """
        lengths = self._lengths[list(branches)]
        for branch, length in zip(branches, lengths, strict=True):
            if length == self._num_blocks[branch] * _BLOCK:
                self._tables[branch, length // _BLOCK :] = self._take_block()
                self._num_blocks[branch] += 1
        width = int(lengths.max()) // _BLOCK + 1
        if self._graphs.is_captured:
            width = next(wider for wider in self._widths() if wider >= width)
        size = self._graphs.size(width, len(branches))
        positions = np.zeros(size, np.int64)
        positions[: len(branches)] = lengths
        tables = np.full((size, width), _SPARE_ROW)
        tables[: len(branches)] = self._tables[list(branches), :width]
        values = [rows, torch.from_numpy(positions), torch.from_numpy(tables)]
        (states,) = self._graphs.run(width, self._step, len(branches), values)
        return states

    def _widths(self) -> list[int]:
        """The numbers of blocks that graphs see."""
        most = self._tables.shape[1]
        widths = [min(_FIRST_WIDTH, most)]
        while widths[-1] < most:
            widths.append(min(_WIDER * widths[-1], most))
        return widths

    def _take_block(self) -> int:
        if not self._free:
            raise RuntimeError(
                f"the branches of the guidance have filled their {self._cache.shape[1] - 1} blocks of {_BLOCK} steps: "
                "lower `max_num_seqs`, or give more `kv_cache_memory_bytes`"
            )
        block = self._free.pop()
        # Nothing of an earlier branch may affect this one, not even a NaN behind the mask.
        self._cache[:, block] = 0
        return block

    def _room(self, num_blocks: int) -> torch.Tensor | None:
        """Return memory (num_blocks, positions, 2, num_kv_heads, head_dim) for a layer's blocks; None within graphs.

        New memory in each step, a little larger than that of the step before, would leave holes in the heap that no
        later step fits into.
        """
        if self._graphs.is_captured:
            return None
        if len(self._read) < num_blocks:
            self._read = self._cache.new_empty((2 * num_blocks, *self._cache.shape[2:]))
        return self._read[:num_blocks]

    def _step(self, rows: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor) -> tuple[torch.Tensor]:
        """Return states (size, hidden_size) of `rows` at `positions` (size,) of branches with blocks (size, width)."""
        (decoder,) = self._decoder
        positions, tables = (each.to(rows.device, non_blocking=True) for each in (positions, tables))
        blocks, offsets = tables.gather(1, positions[:, None] // _BLOCK)[:, 0], positions % _BLOCK
        reachable_shape = len(tables), tables.shape[1] * _BLOCK
        reachable = torch.arange(reachable_shape[1], device=rows.device)
        visible = (reachable <= positions[:, None])[:, None, None]
        hidden, residual = rows.clone(), None
        for layer, cache in zip(decoder.layers, self._cache, strict=True):
            if residual is None:
                residual, hidden = hidden, layer.input_layernorm(hidden)
            else:
                hidden, residual = layer.input_layernorm(hidden, residual)
            attention = layer.self_attn
            qkv, _ = attention.qkv_proj(hidden)
            query, key, value = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
            query, key = attention.rotary_emb(positions, query, key)
            grouped = (len(rows), attention.num_kv_heads, -1, attention.head_dim)
            cache[blocks, offsets] = torch.stack([key, value], dim=1).view(len(rows), 2, *cache.shape[-2:])
            read = torch.index_select(cache, 0, tables.flatten(), out=self._room(tables.numel()))
            keys, values = read.view(*reachable_shape, *cache.shape[2:]).permute(2, 0, 3, 1, 4)
            # The heads that share keys are as one head's positions, for which nothing need be repeated.
            attended = nn.functional.scaled_dot_product_attention(
                query.reshape(grouped), keys, values, attn_mask=visible, scale=attention.scaling
            )
            hidden, _ = attention.o_proj(attended.reshape(len(rows), -1))
            hidden, residual = layer.post_attention_layernorm(hidden, residual)
            hidden = layer.mlp(hidden)
        states: torch.Tensor = decoder.norm(hidden, residual)[0]
        return (states,)


class ConvolutionCache:
    """The ends of the inputs of one tokenizer's causal convolutions, with the interface of transformers' cache."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._ends: dict[str, torch.Tensor] = {}
        self._slots: torch.Tensor | None = None

    def clear(self, slot: int) -> None:
        if self._ends:
            torch._foreach_zero_([end[slot] for end in self._ends.values()])

    def use(self, slots: torch.Tensor) -> ConvolutionCache:
        """Return the cache for a batch of these slots (batch,)."""
        self._slots = slots
        return self

    def update(self, hidden_states: torch.Tensor, cache_key: str, conv_module: nn.Module) -> torch.Tensor:
        """Return the input (batch, num_channels, length) after the end of the earlier one, and keep its end."""
        assert self._slots is not None
        if cache_key not in self._ends:
            shape = (self._num_slots, hidden_states.shape[1], conv_module.left_pad)
            self._ends[cache_key] = hidden_states.new_zeros(shape)
        end = self._ends[cache_key]
        longer = torch.cat([end[self._slots], hidden_states], dim=-1)
        end[self._slots] = longer[..., longer.shape[-1] - conv_module.left_pad :]
        return longer
