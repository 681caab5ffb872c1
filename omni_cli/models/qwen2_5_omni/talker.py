"""Qwen2.5-Omni's talker as a vLLM model: codec tokens from the thinker's hidden states and embeddings.

Every position is conditioned on one row of the thinker (`fill_input_embeds`): prompt positions on the thinker's prompt,
decoded ones on its reply, one row per step. Prompt tokens are codec ids too (the mask id means "no codec token"), so
vLLM sees ordinary token ids and batches, splits and preempts the request like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsPP
from vllm.model_executor.models.llama import LlamaDecoderLayer
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer, WeightsMapper, maybe_prefix

from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsModel
from omni_cli.checkpoints.shards import shards_with_prefix


def _decoder_layer(config: Any, cache_config: Any = None, quant_config: Any = None, prefix: str = "") -> nn.Module:
    """A Qwen2 layer whose head size comes from the config.

    The talker's `head_dim` is not hidden_size / num_attention_heads, which vLLM's Qwen2 layer assumes. vLLM's Llama
    layer has the same arithmetic; its head size, and a bias on q, k and v only, come from the config.
    """
    config.qkv_bias = True
    return LlamaDecoderLayer(vllm_config=get_current_vllm_config(), prefix=prefix, config=config)


class Qwen2_5OmniTalkerForConditionalGeneration(InputEmbedsModel, SupportsPP, SupportsMRoPE):
    """The talker; loads the weights called `talker.` of a whole Qwen2.5-Omni checkpoint."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "talker.codec_head.": "lm_head.",
            "talker.model.": "model.",
            "talker.thinker_to_talker_proj.": "thinker_to_talker_proj.",
            "thinker.": None,
            "token2wav.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.allow_patterns_overrides = shards_with_prefix(vllm_config.model_config.model, "talker.")
        self.model = Qwen2Model(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), decoder_layer_type=_decoder_layer
        )
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.logits_processor = LogitsProcessor(config.vocab_size)
        if get_pp_group().is_first_rank:
            # Codec embeddings are as wide as the thinker's rows and are projected together with them.
            self.model.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.embedding_size)
            self.thinker_to_talker_proj = ReplicatedLinear(
                config.embedding_size,
                config.hidden_size,
                prefix=maybe_prefix(prefix, "thinker_to_talker_proj"),
            )
            self.make_input_buffers(
                vllm_config.scheduler_config.max_num_batched_tokens, config.embedding_size, config.hidden_size
            )
        else:
            self.thinker_to_talker_proj = PPMissingLayer()
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "codec_head")
            )
        else:
            self.lm_head = PPMissingLayer()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return codec embeddings (num_tokens, embedding_size); zero for the mask id."""
        embeds = self.model.embed_tokens(input_ids)
        return embeds.masked_fill_((input_ids == self.config.tts_codec_mask_token_id).unsqueeze(-1), 0)

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.thinker_to_talker_proj(rows)[0]
        return projected

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            # The reference suppresses the start token in every step.
            logits[:, self.config.tts_codec_start_token_id] = float("-inf")
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        mapper = self.hf_to_vllm_mapper | self.model.hf_to_vllm_mapper
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=mapper)
        return loaded
