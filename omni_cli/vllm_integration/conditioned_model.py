"""A model that adds to each position's embedding a condition row from the request, such as a talker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors


class ConditionedModel(nn.Module):
    """Buffers that our runner fills before each forward pass, with `fill_conditions`.

    `model` is vLLM's decoder, which runs on the conditioned rows.
    """

    model: nn.Module
    conditions: torch.Tensor
    bare: torch.Tensor
    inputs: torch.Tensor

    def make_condition_buffers(self, num_rows: int, embedding_size: int, hidden_size: int) -> None:
        # Allocated once, because a CUDA graph reads the addresses that it was captured with.
        self.register_buffer("conditions", torch.zeros(num_rows, embedding_size), persistent=False)
        self.register_buffer("bare", torch.zeros(num_rows, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("inputs", torch.zeros(num_rows, hidden_size), persistent=False)
        self._has_bare = False

    def fill_conditions(self, rows: Sequence[torch.Tensor | None], num_bare: Sequence[int]) -> None:
        """Set the conditions of the next forward pass, one item per request, in batch order.

        `rows` (num_rows, embedding_size) are on the device, in the model's dtype; None raises `ValueError`. The first
        `num_bare` rows omit the embedding of their token. Rows past the last request keep their values: a graph
        captured for a larger batch computes them, and the results are ignored.
        """
        given = [part for part in rows if part is not None]
        if len(given) < len(rows):
            raise ValueError("a talker request needs prompt_embeds: the thinker's rows for its prompt")
        size = self.conditions.shape[1]
        for part in given:
            if part.shape[1] != size:
                raise ValueError(f"the talker is conditioned on rows of {size}, got {part.shape[1]}")
        ends = list(itertools.accumulate(part.shape[0] for part in given))
        torch.cat(given, out=self.conditions[: ends[-1]])
        if self._has_bare:
            self.bare.zero_()
        self._has_bare = any(num_bare)
        for part, end, count in zip(given, ends, num_bare, strict=True):
            if count:
                first = end - part.shape[0]
                self.bare[first : first + count] = True

    def conditioned(self, embeds: torch.Tensor) -> torch.Tensor:
        """Add the conditions in place to the embeddings (num_tokens, embedding_size) of a forward pass's tokens."""
        num_tokens = embeds.shape[0]
        embeds = embeds.masked_fill_(self.bare[:num_tokens], 0)
        embeds += self.conditions[:num_tokens]
        return embeds

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (num_tokens, embedding_size) of codec ids."""
        raise NotImplementedError

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        """Project conditioned rows (num_tokens, embedding_size) to the decoder's (num_tokens, hidden_size)."""
        return rows

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Return hidden states (num_tokens, hidden_size) of codec ids (num_tokens,).

        `positions` are (num_tokens,), or (3, num_tokens) with M-RoPE.
        """
        if get_pp_group().is_first_rank and inputs_embeds is None:
            assert input_ids is not None
            rows = self.project_input(self.conditioned(self.embed_input_ids(input_ids)))
            # Into the buffer that a captured graph reads.
            inputs_embeds = self.inputs[: rows.shape[0]].copy_(rows)
        made: torch.Tensor | IntermediateTensors = self.model(None, positions, intermediate_tensors, inputs_embeds)
        return made

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[object]) -> tuple[torch.Tensor, int]:
        """Return M-RoPE positions (3, num_tokens) of plain text; a request with media brings its own."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0
