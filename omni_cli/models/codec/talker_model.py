"""The talker that Qwen3-Omni and Qwen3-TTS share: a vLLM decoder, a head of codec ids, and a code predictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper, maybe_prefix

from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.models.codec.code_predictor import CodeNetwork, make_code_predictor, stack_projections
from omni_cli.models.codec.frame_model import FrameModel

# Ids that transformers suppresses at the end of the talker's vocabulary, except the end token.
NUM_SUPPRESSED_IDS = 1024


def talker_weights(others: Mapping[str, str | None]) -> WeightsMapper:
    """Return the names of weights; `others` are prefixes of the checkpoint beside those that all talkers have."""
    return WeightsMapper(
        orig_to_new_prefix={
            "talker.codec_head.": "lm_head.",
            "talker.model.codec_embedding.": "model.embed_tokens.",
            **others,
            "talker.model.": "model.",
            "talker.": "",
        }
    )


class TalkerModel(FrameModel, SupportsPP):
    """Loads the weights called `talker.`; the family adds the projection of input rows to the first rank."""

    predictor_name = "code_predictor"
    decoder_class: ClassVar[Any]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        text = vllm_config.model_config.hf_text_config
        self.config = config
        self.num_codebooks: int = config.num_code_groups
        self.allow_patterns_overrides = shards_with_prefix(vllm_config.model_config.model, "talker.")
        self.model = self.decoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        # Small, and read by the code predictor too; a copy per rank costs less than exchanging rows.
        self.model.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.make_ends(vllm_config, text.vocab_size, text.hidden_size, maybe_prefix(prefix, "codec_head"))
        self.max_num_seqs: int = vllm_config.scheduler_config.max_num_seqs
        self.text_projection: nn.Module = PPMissingLayer()
        self.code_predictor: nn.Module = PPMissingLayer()
        if get_pp_group().is_first_rank or get_pp_group().is_last_rank:
            self.code_predictor = make_code_predictor(config.code_predictor_config, text.hidden_size)
            stack_projections(self.code_predictor.model.layers)

    def code_network(self) -> CodeNetwork:
        predictor = self.code_predictor
        return CodeNetwork(
            layers=predictor.model.layers,
            norm=predictor.model.norm,
            rotary_emb=predictor.model.rotary_emb,
            embed=self.embed_codes,
            head=lambda index, hidden: predictor.lm_head[index - 1](hidden),
            project=getattr(predictor, "small_to_mtp_projection", lambda rows: rows),
        )

    def embed_codes(self, index: int, codes: torch.Tensor) -> torch.Tensor:
        table = self.code_predictor.model.codec_embedding[index - 1] if index else self.model.embed_tokens
        rows: torch.Tensor = table(codes)
        return rows

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            end, first = self.config.codec_eos_token_id, logits.shape[-1] - NUM_SUPPRESSED_IDS
            logits[:, max(first, 0) : end] = float("-inf")
            logits[:, max(end + 1, first, 0) :] = float("-inf")
        return logits
