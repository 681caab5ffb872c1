"""The code predictor in CUDA graphs, compiled and not: the codes of its own eager calls, whatever shares the batch."""

from __future__ import annotations

import pytest
import torch
from support.code_predictors import CODEBOOKS, CODES, MAX_BATCH, WIDTH, code_predictor, reference_predictor

from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.models.codec.code_predictor import CodePredictor


@pytest.fixture
def predictor() -> CodePredictor:
    return code_predictor(reference_predictor("cuda"), torch.randn(CODES, WIDTH, device="cuda"))


@pytest.mark.parametrize("compiles", [False, True])
@torch.inference_mode()
def test_replays_make_the_codes_of_eager_calls(predictor, compiles):
    hidden, first = torch.randn(MAX_BATCH, WIDTH, device="cuda"), torch.arange(MAX_BATCH, device="cuda")
    draws = torch.rand(MAX_BATCH, CODEBOOKS - 1, device="cuda")
    draws[::2] = 0  # greedy
    expected = [predictor.forward(hidden, first), predictor.forward(hidden, first, draws)]
    if compiles:
        predictor.compile_parts()
    predictor.capture(CudaGraphBackend(torch.device("cuda")), torch.randn(MAX_BATCH, WIDTH, device="cuda"))
    made = []
    for count in (1, 8, 3, 12, 9):
        made.append((count, 0, predictor(hidden[:count], first[:count], None)))
        made.append((count, 1, predictor(hidden[:count], first[:count], draws[:count])))
    for count, which, (codes, rows) in made:
        assert torch.equal(codes, expected[which][0][:count])
        torch.testing.assert_close(rows, expected[which][1][:count], rtol=1e-4, atol=1e-4)
    counters = predictor.counters
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (4, 10, 0)
