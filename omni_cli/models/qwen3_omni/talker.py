"""Qwen3-Omni's talker and code2wav in vLLM: frames of codes from the thinker's tokens and its rows of images and audio.

vLLM samples the first code of each frame as the talker's token; the code predictor draws the others within the step
(`predict_codes`). A position's input is a row from the thinker plus the embeddings of all its codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeCode2Wav
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
    Qwen3OmniMoeTalkerResizeMLP,
)
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsPP
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper, maybe_prefix

from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.models.codec.code_predictor import CodeNetwork, CodeSampling
from omni_cli.models.codec.decoder_model import CodecForDiffusion
from omni_cli.models.codec.frame_model import FrameModel

# Ids that transformers suppresses at the end of the talker's vocabulary, except the end token.
NUM_SUPPRESSED_IDS = 1024


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class TalkerDecoder(Qwen3MoeModel):
    """vLLM's decoder, compiled for positions (3, num_tokens), because vLLM compiles for a constant (num_tokens,)."""


class Qwen3OmniMoeTalkerForConditionalGeneration(FrameModel, SupportsPP, SupportsMRoPE):
    """The talker; loads the weights called `talker.` of a whole Qwen3-Omni checkpoint."""

    predictor_name = "code_predictor"
    weights_prefix = "talker."
    # transformers' constants for the code predictor of a talker that samples.
    sampling = CodeSampling(top_k=50, top_p=0.8)
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "talker.codec_head.": "lm_head.",
            "talker.model.codec_embedding.": "model.embed_tokens.",
            "talker.model.": "model.",
            "talker.": "",
            "thinker.": None,
            "code2wav.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        text = config.text_config
        self.config = config
        self.num_codebooks: int = config.num_code_groups
        self.allow_patterns_overrides = shards_with_prefix(vllm_config.model_config.model, "talker.")
        self.model = TalkerDecoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        # Small, and read by the code predictor too; a copy per rank costs less than exchanging rows.
        self.model.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.logits_processor = LogitsProcessor(text.vocab_size)
        self.max_num_seqs: int = vllm_config.scheduler_config.max_num_seqs
        ends = get_pp_group()
        self.text_projection: nn.Module = PPMissingLayer()
        self.hidden_projection: nn.Module = PPMissingLayer()
        self.code_predictor: nn.Module = PPMissingLayer()
        self.lm_head: nn.Module = PPMissingLayer()
        if ends.is_first_rank:
            self.text_projection = Qwen3OmniMoeTalkerResizeMLP(config)
            self.hidden_projection = Qwen3OmniMoeTalkerResizeMLP(config)
            num_rows = vllm_config.scheduler_config.max_num_batched_tokens
            self.make_input_buffers(num_rows, text.hidden_size, text.hidden_size)
        if ends.is_first_rank or ends.is_last_rank:
            self.code_predictor = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration._from_config(
                config.code_predictor_config, dtype=torch.get_default_dtype()
            )
        if ends.is_last_rank:
            self.lm_head = ParallelLMHead(text.vocab_size, text.hidden_size, prefix=maybe_prefix(prefix, "codec_head"))

    def code_network(self) -> CodeNetwork:
        predictor = self.code_predictor
        return CodeNetwork(
            config=predictor.config,
            layers=predictor.model.layers,
            norm=predictor.model.norm,
            rotary_emb=predictor.model.rotary_emb,
            embed=self.embed_codes,
            head=lambda index, hidden: predictor.lm_head[index - 1](hidden),
        )

    def embed_codes(self, index: int, codes: torch.Tensor) -> torch.Tensor:
        table = self.code_predictor.model.codec_embedding[index - 1] if index else self.model.embed_tokens
        rows: torch.Tensor = table(codes)
        return rows

    def project_input_embeds(self, rows: torch.Tensor, hidden_positions: Sequence[int]) -> torch.Tensor:
        """Project rows (num_rows, thinker_hidden_size) to (num_rows, hidden_size), for the talker to add."""
        size = self.config.thinker_hidden_size
        if rows.shape[1] != size:
            raise ValueError(f"the talker is conditioned on rows of {size}, got {rows.shape[1]}")
        projected: torch.Tensor = self.text_projection(rows)
        if hidden_positions:
            positions = torch.tensor(hidden_positions, device=rows.device)
            projected[positions] = self.hidden_projection(rows[positions])
        return projected

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings (num_tokens, hidden_size) of first codes and special ids."""
        embeds: torch.Tensor = self.model.embed_tokens(input_ids)
        return embeds

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            end, first = self.config.codec_eos_token_id, logits.shape[-1] - NUM_SUPPRESSED_IDS
            logits[:, max(first, 0) : end] = float("-inf")
            logits[:, max(end + 1, first, 0) :] = float("-inf")
        return logits


class Qwen3OmniMoeCode2WavForDiffusion(CodecForDiffusion):
    """Loads the weights called `code2wav.` of a Qwen3-Omni checkpoint."""

    weights_prefix = "code2wav."
    sample_rate = 24_000

    def make_codec(self, config: Any) -> nn.Module:
        code2wav = config.code2wav_config
        self.codebook_size, self.num_codebooks = code2wav.codebook_size, code2wav.num_quantizers
        codec: nn.Module = Qwen3OmniMoeCode2Wav._from_config(code2wav, dtype=torch.get_default_dtype())
        return codec
