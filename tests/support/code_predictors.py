"""A small code predictor of Qwen3-Omni with random weights, and the model of transformers that it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omni_cli.checkpoints.weights import random_state_dict
from omni_cli.models.codec.code_predictor import CodeNetwork, CodePredictor, CodeSampling, stack_projections

CODES, CODEBOOKS, WIDTH, MAX_BATCH = 96, 6, 64, 12
SAMPLING = CodeSampling(top_k=20, top_p=0.8)


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
    reference: Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
    first_table: torch.Tensor,
    sampling: CodeSampling = SAMPLING,
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
    return CodePredictor(network, CODEBOOKS, sampling)


def kernel_predictor(device: str, **sizes: int) -> tuple[CodeNetwork, Callable[..., torch.Tensor]]:
    """A network in bfloat16 that `FrameKernel` has the sizes of, and what its logits are.

    The second, given `hidden` and frames of codes (batch, num_codebooks), returns logits (batch, num_codebooks - 1,
    num_codes) of float32 arithmetic.
    """
    config = Qwen3OmniMoeTalkerCodePredictorConfig(
        **{
            "vocab_size": CODES, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_code_groups": CODEBOOKS, **sizes,
        },
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    model = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration(config).eval()
    model.load_state_dict(random_state_dict(model, 3, gains={"q_proj": 2.0, "k_proj": 2.0, "lm_head": 2.0}))
    table = torch.randn(config.vocab_size, config.hidden_size, generator=torch.Generator().manual_seed(4)).to(device)
    exact = copy.deepcopy(model).to(device)
    model, table = model.to(device, torch.bfloat16), table.bfloat16()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    stack_projections(model.model.layers)
    for index, layer in enumerate(model.model.layers):
        for part, names in (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj"))):
            prefix = f"model.layers.{index}.{part}."
            stacked = torch.cat([weights[f"{prefix}{name}.weight"] for name in names])
            getattr(getattr(layer, part), names[0]).weight.data = stacked
    network = CodeNetwork(
        layers=model.model.layers,
        norm=model.model.norm,
        rotary_emb=model.model.rotary_emb,
        embed=lambda index, codes: model.model.codec_embedding[index - 1](codes) if index else table[codes],
        head=lambda index, hidden: model.lm_head[index - 1](hidden),
    )

    def logits(hidden: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        later = [exact.model.codec_embedding[index](codes[:, index + 1]) for index in range(codes.shape[1] - 2)]
        rows = torch.stack([hidden.float(), table[codes[:, 0]].float(), *later], dim=1)
        made = exact.model(inputs_embeds=rows, use_cache=False).last_hidden_state
        return torch.stack([head(made[:, index + 1]) for index, head in enumerate(exact.lm_head)], dim=1)

    return network, logits


def misdrawn(logits: torch.Tensor, codes: torch.Tensor, draws: torch.Tensor, sampling: CodeSampling) -> torch.Tensor:
    """Return how far (batch, num_draws) each of `draws` is from the part of the distribution that its code has."""
    top, ids = (logits / sampling.temperature).topk(sampling.top_k, dim=-1)
    kept = top.softmax(dim=-1)
    kept = kept.masked_fill(kept.cumsum(dim=-1) - kept >= sampling.top_p, 0)
    reached = kept.cumsum(dim=-1) / kept.sum(dim=-1, keepdim=True)
    chosen = (ids == codes[..., None]).int()
    assert chosen.any(dim=-1).all()
    place = chosen.argmax(dim=-1, keepdim=True)
    end = reached.gather(-1, place).squeeze(-1)
    begin = end - (kept / kept.sum(dim=-1, keepdim=True)).gather(-1, place).squeeze(-1)
    return torch.maximum(begin - draws, draws - end).clamp(min=0)
