"""Quantized weights and channels last: what the weights are afterwards, and the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration import weights
from omni_cli.diffusers_integration.executor import DiffusersPipelineExecutor
from omni_cli.diffusers_integration.requests import DiffusionRequest, DiffusionSchedulerOutput
from omni_cli.errors import UsageError

needs_torchao = pytest.mark.skipif(
    weights.importlib.util.find_spec("torchao") is None, reason="torchao is an extra: `omni-cli[quantization]`"
)


def made(**keys: Any) -> tuple[np.ndarray, dict[str, float], dict[str, Any]]:
    """The image of one request, the counters and the effective settings."""
    stage = DiffusionStageConfig.named("image", num_inference_steps=4, height=64, width=64, **keys)
    executor = DiffusersPipelineExecutor(stage, resolve_model("builtin:tiny-image"), "float32", "cpu")
    request = DiffusionRequest("0", "a red cat", seed=1)
    (output,) = executor.execute_model(DiffusionSchedulerOutput((request,))).outputs
    found = output.pixels.astype(int), dict(executor.engagement), dict(executor.effective)
    executor.shutdown()
    return found


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return made()[0]


@needs_torchao
@pytest.mark.parametrize("quantization", ["int8_weight_only", "int8_dynamic", "float8_weight_only"])
def test_quantized_weights_take_less_memory_and_change_little(plain, quantization):
    pixels, counters, effective = made(quantization=quantization)
    assert counters["weight_bytes"] < 0.6 * counters["loaded_weight_bytes"]
    assert effective["quantization"] == quantization and effective["quantized_weights"] > 0
    gap = np.abs(pixels - plain)
    assert gap.max() > 0 and gap.mean() < 8


def test_channels_last_is_in_effect_and_rounds(plain):
    pixels, counters, _ = made(channels_last=True)
    assert counters["channels_last_convolutions"] > 0
    assert np.abs(pixels - plain).max() <= 1


def test_a_quantization_that_cannot_be_followed_is_refused(monkeypatch):
    def refused(quantization: str) -> UsageError:
        with pytest.raises(UsageError) as raised:
            weights.check_quantization(DiffusionStageConfig.named("image", quantization=quantization), "cpu")
        return raised.value

    if weights.importlib.util.find_spec("torchao") is not None:
        message = refused("float8_dynamic").message
        assert message.endswith("needs a GPU with products in float8, and the stage runs on `cpu`")
        monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    error = refused("int8_weight_only")
    assert error.message == "stage `image`: `quantization: int8_weight_only` needs torchao, which is not installed"
    assert "omni-cli[quantization]" in (error.hint or "")


@needs_torchao
def test_a_pipeline_without_what_a_key_changes_refuses_it():
    pipeline = type("Pipeline", (), {"components": {"text": torch.nn.Linear(2, 2)}})()
    for key, why in (("quantization", "has none"), ("channels_last", "no convolutions")):
        stage = DiffusionStageConfig.named("image", **{key: "int8_weight_only" if key == "quantization" else True})
        with pytest.raises(UsageError, match=why):
            weights.reshape_weights(pipeline, stage)
