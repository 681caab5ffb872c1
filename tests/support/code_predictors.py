"""A small code predictor of Qwen3-Omni with random weights, and the model of transformers that it runs."""

from __future__ import annotations

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omni_cli.checkpoints.weights import random_state_dict
from omni_cli.models.codec.code_predictor import CodeNetwork, CodePredictor, CodeSampling

CODES, CODEBOOKS, WIDTH, MAX_BATCH = 96, 6, 64, 12


def reference_predictor(device: str = "cpu") -> Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration:
    config = Qwen3OmniMoeTalkerCodePredictorConfig(
        vocab_size=CODES,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_code_groups=CODEBOOKS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    model = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration(config).eval()
    model.load_state_dict(random_state_dict(model, 3, gains={"q_proj": 2.0, "k_proj": 2.0, "lm_head": 2.0}))
    return model.to(device)


def code_predictor(
    reference: Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration, first_table: torch.Tensor
) -> CodePredictor:
    """`first_table` (CODES, WIDTH) are the embeddings of the backbone's codes."""

    def embed(index: int, codes: torch.Tensor) -> torch.Tensor:
        return reference.model.codec_embedding[index - 1](codes) if index else first_table[codes]

    network = CodeNetwork(
        layers=reference.model.layers,
        norm=reference.model.norm,
        rotary_emb=reference.model.rotary_emb,
        embed=embed,
        head=lambda index, hidden: reference.lm_head[index - 1](hidden),
    )
    return CodePredictor(network, CODEBOOKS, CodeSampling(top_k=20, top_p=0.8))
