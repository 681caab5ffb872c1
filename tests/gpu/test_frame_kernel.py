"""The kernel of a frame's codes at a release's sizes: right draws, alone as beside others, and from graphs."""

from __future__ import annotations

import pytest
import torch
from support.code_predictors import kernel_predictor, misdrawn

from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.models.codec.code_predictor import CodePredictor, CodeSampling
from omni_cli.models.codec.frame_kernel import FrameKernel

CODEBOOKS, CODES, WIDTH, MAX_BATCH = 16, 2048, 1024, 40
SAMPLING = CodeSampling(50, 0.8, 0.9)


@pytest.fixture(scope="module")
def predictor():
    return kernel_predictor(
        "cuda", vocab_size=CODES, hidden_size=WIDTH, intermediate_size=3072, num_hidden_layers=5,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, num_code_groups=CODEBOOKS,
    )  # fmt: skip


@torch.inference_mode()
def test_codes_are_those_of_transformers_layers_within_bfloat16(predictor):
    network, logits = predictor
    assert FrameKernel.suits(network, CODEBOOKS, SAMPLING.top_k)
    captured = CodePredictor(network, CODEBOOKS, SAMPLING)
    hidden = torch.randn(MAX_BATCH, WIDTH, device="cuda").bfloat16()
    captured.capture(CudaGraphBackend(torch.device("cuda")), hidden)
    first = torch.randint(CODES, (MAX_BATCH,), device="cuda")
    draws = torch.rand(MAX_BATCH, CODEBOOKS - 1, device="cuda")
    draws[::2] = 0  # greedy
    alone = torch.cat(
        [captured(hidden[row : row + 1], first[row : row + 1], draws[row : row + 1])[0] for row in range(8)]
    )
    layers, _ = CodePredictor(network, CODEBOOKS, SAMPLING).forward(hidden, first, draws)
    for count in (1, 8, 9, 17, 32, MAX_BATCH):
        codes, rows = captured(hidden[:count], first[:count], draws[:count])
        assert torch.equal(codes[:8], alone[:count])
        off = misdrawn(logits(hidden[:count], codes), codes[:, 1:], draws[:count], SAMPLING)
        own = misdrawn(logits(hidden[:count], layers[:count]), layers[:count, 1:], draws[:count], SAMPLING)
        assert off.mean() < 2 * own.mean() + 0.002
        later = sum(network.embed(index, codes[:, index]).float() for index in range(1, CODEBOOKS))
        torch.testing.assert_close(rows.float(), later, rtol=0.01, atol=0.05)
    greedy, _ = captured(hidden[:5], first[:5], None)
    assert torch.equal(greedy[::2], captured(hidden[:5], first[:5], draws[:5])[0][::2])
