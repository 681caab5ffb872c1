"""CUDA graphs over compiled blocks, and products in float8, on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni_cli.backends.diffusers import weights
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig

STEPS = 4


def images(folder, **keys) -> tuple[list[np.ndarray], dict[str, float]]:
    stage = DiffusionStageConfig.create("image", num_inference_steps=STEPS, height=64, width=64, **keys)
    executor = DiffusersPipelineExecutor(stage, str(folder), "bfloat16", "cuda")
    requests = tuple(DiffusionRequest(str(seed), "a cat", seed=seed) for seed in (1, 2))
    outputs = executor.execute_model(requests)
    for output in outputs:
        if output.error is not None:
            raise output.error
    counters = dict(executor.execution_counters)
    executor.shutdown()
    return [output.images[0] for output in outputs], counters


def test_a_graph_over_compiled_blocks_makes_the_images_of_the_compiled_blocks(folders):
    torch.compiler.reset()
    compiled, _ = images(folders["qwen_image"], execution="compile")
    torch.compiler.reset()  # what is compiled already is used again, and not counted
    graphed, counters = images(folders["qwen_image"], execution="compile_cudagraph")
    for a, b in zip(compiled, graphed, strict=True):
        np.testing.assert_array_equal(a, b)
    assert counters["graph_replays"] == 2 * STEPS and counters["eager_calls"] == 0
    assert counters["graphs_captured"] == 1 and counters["compiled_graphs"] >= 1


@pytest.mark.parametrize("quantization", ["bitsandbytes_8bit", "bitsandbytes_nf4"])
def test_bitsandbytes_shrinks_the_weights(folders, quantization):
    pytest.importorskip("bitsandbytes")
    plain, _ = images(folders["qwen_image"])
    reduced, counters = images(folders["qwen_image"], quantization=quantization)
    assert counters["weight_bytes"] < 0.7 * counters["loaded_weight_bytes"]
    gap = np.abs(plain[0].astype(int) - reduced[0])
    assert gap.max() > 0 and gap.mean() < 24


def test_cache_dit_skips_steps_and_threshold_0_none(folders):
    pytest.importorskip("cache_dit")
    cache = {"method": "cache_dit", "Fn_compute_blocks": 1, "max_warmup_steps": 1}
    plain, _ = images(folders["qwen_image"])
    exact, counters = images(folders["qwen_image"], cache={**cache, "threshold": 0.0})
    np.testing.assert_array_equal(plain[0], exact[0])
    assert counters["cached_calls"] == 0
    _, counters = images(folders["qwen_image"], cache={**cache, "threshold": 1e9})
    assert counters["cached_calls"] == 2 * (STEPS - 1)


def test_products_in_float8_shrink_the_weights(folders, monkeypatch):
    pytest.importorskip("torchao")
    monkeypatch.setattr(weights, "_MIN_FLOAT8_FEATURES", 16)
    plain, _ = images(folders["qwen_image"])
    reduced, counters = images(folders["qwen_image"], quantization="float8_dynamic", execution="compile")
    assert counters["weight_bytes"] < counters["loaded_weight_bytes"]
    gap = np.abs(plain[0].astype(int) - reduced[0])
    assert gap.max() > 0 and gap.mean() < 16
