"""Profiles for a GPU on tiny checkpoints of the same pipelines: their settings reach the call, which takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from support.tiny_pipelines import declarations
from support.tiny_pipelines.build import build

from omni_cli.backends.diffusers.arguments import call_arguments
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import DiffusionStageConfig

CARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen-image": (
        "QwenImagePipeline",
        {"num_inference_steps": 50, "true_cfg_scale": 4.0, "negative_prompt": " ", "height": 1328, "width": 1328},
    ),
    "qwen-image-edit": (
        "QwenImageEditPipeline",
        {"num_inference_steps": 50, "true_cfg_scale": 4.0, "negative_prompt": " "},
    ),
    "z-image-turbo": (
        "ZImagePipeline",
        {"num_inference_steps": 8, "guidance_scale": 0.0, "height": 1024, "width": 1024},
    ),
    "flux.2-klein": (
        "Flux2KleinPipeline",
        {"num_inference_steps": 4, "guidance_scale": 1.0, "height": 1024, "width": 1024},
    ),
    "stable-audio": (
        "StableAudioPipeline",
        {"num_inference_steps": 200, "negative_prompt": "Low quality.", "audio_end_in_s": 10.0},
    ),
}


# Editing scales every image to 1024x1024 pixels.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "qwen-image-edit" else name for name in CARDS]
)
def test_the_settings_of_a_model_card_are_those_of_the_call(name: str, tmp_path: Path) -> None:
    pipeline_class, settings = CARDS[name]
    declared = declarations()[pipeline_class]
    build(declared, tmp_path)
    (stage,) = load_profile(name).stages
    assert isinstance(stage, DiffusionStageConfig)
    executor = DiffusersPipelineExecutor(
        stage.model_copy(update={"execution": "eager"}), str(tmp_path), "float32", "cpu"
    )
    call: dict[str, Any] = dict(declared.call)
    image = {key: value for key, value in call.items() if key == "image"}
    # The tiny encoder has fewer layers than the default takes.
    layers = {key: tuple(value) for key, value in call.items() if key == "text_encoder_out_layers"}
    plain = {"prompt": "a red cat", **layers}
    given = DiffusionRequest.from_arguments("0", "a red cat", 3, layers, image)
    if stage.name != "audio":  # the tiny model makes no ten seconds
        assert call_arguments(executor.resolve(given), executor.call) == {**plain, **settings, **image}
    size = {"audio_end_in_s": 0.25} if stage.name == "audio" else {"height": 64, "width": 64}
    small = {"num_inference_steps": 2, **size}
    request = DiffusionRequest.from_arguments("0", "a red cat", 3, {**layers, **small}, image)
    (output,) = executor.execute_model((request,))
    assert output.error is None
    made = output.sounds[0] if stage.name == "audio" else output.images[0]
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator("cpu").manual_seed(3)
    expected = pipeline(**{**plain, **settings, **small, **image}, generator=generator)
    if stage.name == "audio":
        np.testing.assert_array_equal(made, expected.audios[0].T.numpy())
    else:
        np.testing.assert_array_equal(made, np.asarray(expected.images[0]))
    executor.shutdown()
