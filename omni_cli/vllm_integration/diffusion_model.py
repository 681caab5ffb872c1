"""Base class of diffusion models on vLLM: the members that vLLM requires of a model that returns tensors."""

from __future__ import annotations

import torch
from torch import nn
from vllm.model_executor.layers.pooler import DispatchPooler, IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree


class DiffusionModel(nn.Module, IsAttentionFree):
    """A model without logits and KV cache; subclasses define `sample`, see `diffusion_entry`."""

    is_pooling_model = True

    def __init__(self) -> None:
        super().__init__()
        self.pooler = DispatchPooler({"plugin": IdentityPooler()})

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return (num_tokens, 1): `sample` embeds its own inputs."""
        return input_ids.unsqueeze(-1).float()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Serve vLLM's profiling run, which is its only caller."""
        return self.embed_input_ids(input_ids)
