"""The code predictor in CUDA graphs, compiled and not: the codes of its own eager calls, whatever shares the batch."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omni_cli.checkpoints.weights import random_state_dict
from omni_cli.execution.cuda_graphs import CudaGraphBackend
from omni_cli.models.codec.code_predictor import CodeNetwork, CodePredictor, CodeSampling
from omni_cli.models.codec.predictor_graphs import PredictorGraphs

CODES, CODEBOOKS, WIDTH, MAX_BATCH = 96, 6, 64, 12


@pytest.fixture
def predictor() -> CodePredictor:
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
    model.to("cuda")
    table = torch.randn(CODES, WIDTH, device="cuda")
    network = CodeNetwork(
        config=model.config,
        layers=model.model.layers,
        norm=model.model.norm,
        rotary_emb=model.model.rotary_emb,
        embed=lambda index, codes: model.model.codec_embedding[index - 1](codes) if index else table[codes],
        head=lambda index, hidden: model.lm_head[index - 1](hidden),
    )
    return CodePredictor(
        network,
        num_codebooks=CODEBOOKS,
        max_batch=MAX_BATCH,
        sampling=CodeSampling(top_k=20, top_p=0.8),
        dtype=torch.float32,
        device=torch.device("cuda"),
    )


@pytest.mark.parametrize("compiles", [False, True])
@torch.inference_mode()
def test_replays_make_the_codes_of_eager_calls(predictor, compiles):
    hidden, first = torch.randn(MAX_BATCH, WIDTH, device="cuda"), torch.arange(MAX_BATCH, device="cuda")
    draws = torch.rand(MAX_BATCH, CODEBOOKS - 1, device="cuda")
    is_greedy = torch.arange(MAX_BATCH, device="cuda")[:, None] % 2 == 0
    expected = [predictor(hidden, first), predictor(hidden, first, draws, is_greedy)]
    if compiles:
        predictor.compile_parts()
    graphs = PredictorGraphs(predictor)
    graphs.capture(CudaGraphBackend(torch.device("cuda")), torch.randn(MAX_BATCH, WIDTH, device="cuda"))
    made = []
    for count in (1, 8, 3, 12, 9):
        made.append((count, 0, graphs(hidden[:count], first[:count], None, None)))
        made.append((count, 1, graphs(hidden[:count], first[:count], draws[:count], is_greedy[:count])))
    for count, which, (codes, rows) in made:
        assert torch.equal(codes, expected[which][0][:count])
        torch.testing.assert_close(rows, expected[which][1][:count], rtol=1e-4, atol=1e-4)
    assert (graphs.counters.graphs_captured, graphs.counters.graph_replays, graphs.counters.eager_calls) == (4, 10, 0)
