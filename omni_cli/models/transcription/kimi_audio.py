"""Kimi-Audio as a vLLM model without memory that nothing was loaded into."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.kimi_audio import KimiAudioForConditionalGeneration


class KimiAudio(KimiAudioForConditionalGeneration):
    """vLLM's model, whose encoder's keys have a bias of zero: Whisper has none, and vLLM 0.32 leaves it unset."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        for layer in self.audio_tower.layers:
            nn.init.zeros_(layer.self_attn.qkv_proj.bias)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor] | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embed tokens and sounds. vLLM 0.32 takes those of the first sound of a step alone."""
        if not multimodal_embeddings or is_multimodal is None:
            return super().embed_input_ids(input_ids)
        mask = is_multimodal.clone()
        edges = torch.diff(mask.int(), prepend=mask.new_zeros(1).int(), append=mask.new_zeros(1).int())
        runs = zip((edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist(), strict=True)
        for sound, (begin, end) in zip(multimodal_embeddings, runs, strict=True):
            mask[begin + len(sound) : end] = False  # vLLM may count one token too many
        whole = [torch.cat(tuple(multimodal_embeddings))]
        return super().embed_input_ids(input_ids, whole, is_multimodal=mask)
