"""A model that adds an input embedding from the request to each token's own, such as a talker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors


class InputEmbedsModel(nn.Module):
    """Buffers that our runner fills before each forward pass, with `fill_input_embeds`.

    `model` is vLLM's decoder, which runs on the sums.
    """

    model: nn.Module
    input_embeds: torch.Tensor
    without_embedding: torch.Tensor
    inputs: torch.Tensor

    def make_input_buffers(self, num_rows: int, embedding_size: int, hidden_size: int) -> None:
        # Allocated once, because a CUDA graph reads the addresses that it was captured with.
        self.register_buffer("input_embeds", torch.zeros(num_rows, embedding_size), persistent=False)
        self.register_buffer("without_embedding", torch.zeros(num_rows, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("inputs", torch.zeros(num_rows, hidden_size), persistent=False)
        self._any_without_embedding = False

    def fill_input_embeds(self, rows: Sequence[torch.Tensor | None], tokens_without_embedding: Sequence[int]) -> None:
        """Set the input embeddings of the next forward pass, one item per request, in batch order.

        `rows` (num_rows, embedding_size) are on the device, in the model's dtype; None raises `ValueError`. To the
        first `tokens_without_embedding` rows, the embedding of their token is not added. Rows past the last request
        keep their values: a graph captured for a larger batch computes them, and the results are ignored.
        """
        parts = [part for part in rows if part is not None]
        if len(parts) < len(rows):
            raise ValueError("a talker request needs prompt_embeds: the thinker's rows for its prompt")
        size = self.input_embeds.shape[1]
        for part in parts:
            if part.shape[1] != size:
                raise ValueError(f"the talker is conditioned on rows of {size}, got {part.shape[1]}")
        ends = list(itertools.accumulate(part.shape[0] for part in parts))
        torch.cat(parts, out=self.input_embeds[: ends[-1]])
        if self._any_without_embedding:
            self.without_embedding.zero_()
        self._any_without_embedding = any(tokens_without_embedding)
        for part, end, count in zip(parts, ends, tokens_without_embedding, strict=True):
            if count:
                first = end - part.shape[0]
                self.without_embedding[first : first + count] = True

    def add_input_embeds(self, embeds: torch.Tensor) -> torch.Tensor:
        """Add the input embeddings in place to those (num_tokens, embedding_size) of a forward pass's tokens."""
        num_tokens = embeds.shape[0]
        embeds = embeds.masked_fill_(self.without_embedding[:num_tokens], 0)
        embeds += self.input_embeds[:num_tokens]
        return embeds

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (num_tokens, embedding_size) of codec ids."""
        raise NotImplementedError

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        """Project summed embeddings (num_tokens, embedding_size) to the decoder's (num_tokens, hidden_size)."""
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
            rows = self.project_input(self.add_input_embeds(self.embed_input_ids(input_ids)))
            # Into the buffer that a captured graph reads.
            inputs_embeds = self.inputs[: rows.shape[0]].copy_(rows)
        hidden: torch.Tensor | IntermediateTensors = self.model(None, positions, intermediate_tensors, inputs_embeds)
        return hidden

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[object]) -> tuple[torch.Tensor, int]:
        """Return M-RoPE positions (3, num_tokens) of plain text; a request with media brings its own."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0
