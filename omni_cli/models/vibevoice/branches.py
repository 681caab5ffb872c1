"""State of each request outside vLLM's KV cache: the branches of the guidance, and the ends of convolutions' inputs.

A request has a slot. Its two branches are sequences of the backbone that do not see the prompt: that of the diffusion
has the inputs of the steps that made sound since speech last began, and that of the control tokens, which transformers
also guides, has all tokens. They are short beside the prompt, and start and end apart from it, so they are in caches of
their own: one batch of all branches per step, through the layers of vLLM's backbone with attention of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

_FIRST_CAPACITY = 64


class BranchCache:
    """Keys and values (num_slots, num_heads, capacity, head_dim) per layer, with room for the longest branch."""

    def __init__(self, decoder: nn.Module, num_slots: int) -> None:
        self._decoder = (decoder,)  # not as a submodule: the weights belong to the model
        self._lengths = [0] * num_slots
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def clear(self, slot: int) -> None:
        self._lengths[slot] = 0

    def advance(self, slots: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Append one input row (num_slots, hidden_size) to each branch; return its hidden state of the same shape."""
        (decoder,) = self._decoder
        lengths = [self._lengths[slot] for slot in slots]
        longest = max(lengths) + 1
        self._grow(decoder, longest, rows)
        device = rows.device
        positions, chosen = torch.tensor(lengths, device=device), torch.tensor(slots, device=device)
        visible = (torch.arange(longest, device=device) <= positions[:, None])[:, None, None]
        hidden, residual = rows.clone(), None
        for index, layer in enumerate(decoder.layers):
            if residual is None:
                residual, hidden = hidden, layer.input_layernorm(hidden)
            else:
                hidden, residual = layer.input_layernorm(hidden, residual)
            attention = layer.self_attn
            qkv, _ = attention.qkv_proj(hidden)
            query, key, value = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
            query, key = attention.rotary_emb(positions, query, key)
            for cache, new in ((self._keys[index], key), (self._values[index], value)):
                cache[chosen, :, positions] = new.reshape(len(slots), attention.num_kv_heads, -1)
            attended = nn.functional.scaled_dot_product_attention(
                query.reshape(len(slots), attention.num_heads, 1, -1),
                self._keys[index][chosen, :, :longest],
                self._values[index][chosen, :, :longest],
                attn_mask=visible,
                scale=attention.scaling,
                enable_gqa=True,
            )
            hidden, _ = attention.o_proj(attended.reshape(len(slots), -1))
            hidden, residual = layer.post_attention_layernorm(hidden, residual)
            hidden = layer.mlp(hidden)
        states: torch.Tensor = decoder.norm(hidden, residual)[0]
        for slot in slots:
            self._lengths[slot] += 1
        return states

    def _grow(self, decoder: nn.Module, length: int, like: torch.Tensor) -> None:
        """Double the capacity until it is at least `length`."""
        capacity = self._keys[0].shape[2] if self._keys else 0
        if length <= capacity:
            return
        grown = max(2 * capacity, _FIRST_CAPACITY)
        for caches in (self._keys, self._values):
            for index, layer in enumerate(decoder.layers):
                attention = layer.self_attn
                shape = (len(self._lengths), attention.num_kv_heads, grown, attention.head_dim)
                larger = like.new_zeros(shape)
                if capacity:
                    larger[:, :, :capacity] = caches[index]
                    caches[index] = larger
                else:
                    caches.append(larger)


class ConvolutionCache:
    """The ends of the inputs of one tokenizer's causal convolutions, with the interface of transformers' cache."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._ends: dict[str, torch.Tensor] = {}
        self._slots: torch.Tensor | None = None

    def clear(self, slot: int) -> None:
        for end in self._ends.values():
            end[slot] = 0

    def use(self, slots: Sequence[int], device: torch.device) -> ConvolutionCache:
        """Return the cache for a batch of these slots."""
        self._slots = torch.tensor(slots, device=device)
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
