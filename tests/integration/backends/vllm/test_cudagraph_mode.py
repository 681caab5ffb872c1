"""`cudagraph_mode`: modes without a device are refused, and a mode that vLLM reduces is an error."""

from __future__ import annotations

import asyncio

import pytest
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport

from omni_cli.backends.vllm.device_settings import check_effective
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import StageError
from omni_cli.engine.devices import has_cuda_device
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.engine.process.fork_server import ForkServer

WITHOUT_A_DEVICE = pytest.mark.skipif(has_cuda_device(), reason="this machine has what the test says that it lacks")
MODES = ["piecewise", "full", "full_decode_only", "full_and_piecewise"]


@WITHOUT_A_DEVICE
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_without_a_device_is_refused_before_anything_is_started(mode, monkeypatch):
    llm = OmniLLM(load_profile("tiny-omni", [f"talker.cudagraph_mode={mode}"]))
    monkeypatch.setattr(ForkServer, "start", lambda server: pytest.fail("a process was to be started"))
    with pytest.raises(StageError) as caught:
        asyncio.run(llm.start())
    assert caught.value.message == (
        f"stage `talker`: `cudagraph_mode: {mode}` needs a CUDA device, and this machine has none"
    )
    assert caught.value.hint == "--set talker.cudagraph_mode=none"


def test_a_reduced_mode_is_an_error():
    stage = ARStageConfig.create("thinker", cudagraph_mode="full")
    compilation = CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL, mode=0)
    settled = compilation.resolve_cudagraph_mode_and_sizes(AttentionCGSupport.UNIFORM_BATCH, "FlashAttention2")
    mode = settled.name.lower()
    assert mode == "full_decode_only"
    with pytest.raises(StageError) as caught:
        check_effective(stage, mode, {"graphs_captured": 9})
    assert caught.value.message == "`cudagraph_mode` is full, but vLLM runs full_decode_only"
    assert caught.value.hint == "--set thinker.cudagraph_mode=full_decode_only; `-v` shows vLLM's reason"


def test_a_mode_for_which_nothing_was_captured_is_an_error():
    stage = ARStageConfig.create("thinker", cudagraph_mode="piecewise")
    with pytest.raises(StageError, match="vLLM has captured no graph"):
        check_effective(stage, "piecewise", {"graphs_captured": 0})
    check_effective(stage, "piecewise", {"graphs_captured": 1})
    check_effective(ARStageConfig.create("thinker"), "none", {"graphs_captured": 0})
