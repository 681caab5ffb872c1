"""Replays of vLLM's own wrapper are counted; only CUDA's graph object is a stand-in."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from vllm.compilation import cuda_graph
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor, set_forward_context

from omni_cli.backends.vllm.runner_mixins import GraphCounters

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE
DECODE_8, DECODE_16 = BatchDescriptor(8, 8, uniform=True), BatchDescriptor(16, 16, uniform=True)
MIXED_8 = BatchDescriptor(8)


class CountsReplays:
    """Replaces `torch.cuda.CUDAGraph`."""

    replays = 0

    def replay(self) -> None:
        CountsReplays.replays += 1


@pytest.fixture
def config(monkeypatch) -> VllmConfig:
    monkeypatch.setattr(CountsReplays, "replays", 0)
    monkeypatch.setattr(CUDAGraphWrapper, "_all_instances", type(CUDAGraphWrapper._all_instances)())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CountsReplays)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    for name in ("current_stream", "validate_cudagraph_capturing_enabled"):
        monkeypatch.setattr(cuda_graph, name, lambda *_: None)
    monkeypatch.setattr(cuda_graph, "capture_pool", lambda *_: nullcontext())
    monkeypatch.setattr(cuda_graph, "weak_ref_tensors", lambda output: output)
    monkeypatch.setattr(type(cuda_graph.current_platform), "get_global_graph_pool", lambda _: "pool")
    return VllmConfig()


def step(model: CUDAGraphWrapper, config: VllmConfig, mode: CUDAGraphMode, shape: BatchDescriptor, counters=None):
    with set_forward_context(None, config, cudagraph_runtime_mode=mode, batch_descriptor=shape):
        counted = None if counters is None else counters.count_step()
        model(torch.ones(1))
    return counted


def test_a_step_counts_as_replay_exactly_when_vllm_replays(config):
    pieces = [CUDAGraphWrapper(lambda x: x, config, PIECEWISE) for _ in range(3)]

    def run_pieces(x: torch.Tensor) -> torch.Tensor:
        for piece in pieces:
            x = piece(x)
        return x

    model = CUDAGraphWrapper(run_pieces, config, FULL)
    counters = GraphCounters()
    for mode, shape in ((PIECEWISE, MIXED_8), (FULL, DECODE_8), (FULL, DECODE_16)):
        step(model, config, mode, shape)
    counters.on_capture(pool_bytes=4096, seconds=0.5)
    assert counters.as_dict() == {
        "graphs_captured": 5,
        "graph_replays": 0,
        "eager_calls": 0,
        "graph_pool_bytes": 4096,
        "capture_s": 0.5,
    }
    steps = [(FULL, DECODE_8), (PIECEWISE, MIXED_8), (NONE, BatchDescriptor(300)), (FULL, DECODE_16), (NONE, DECODE_8)]
    for mode, shape in steps:
        before = CountsReplays.replays
        counted = step(model, config, mode, shape, counters)
        assert counted == (CountsReplays.replays > before), (mode, shape)
    assert (counters.as_dict()["graph_replays"], counters.as_dict()["eager_calls"]) == (3, 2)


def test_a_model_without_a_compiled_part_runs_eagerly_in_piecewise_mode_and_counts_as_that(config):
    model = CUDAGraphWrapper(lambda x: x, config, FULL)
    step(model, config, FULL, DECODE_8)
    counters = GraphCounters()
    counters.on_capture(pool_bytes=0, seconds=0.0)
    assert not step(model, config, PIECEWISE, MIXED_8, counters)
    assert counters.as_dict()["eager_calls"] == 1


def test_without_graphs_every_step_is_eager(config):
    counters = GraphCounters()
    assert not step(CUDAGraphWrapper(lambda x: x, config, FULL), config, NONE, MIXED_8, counters)
    assert counters.as_dict()["eager_calls"] == 1 and not counters.as_dict()["graphs_captured"]
