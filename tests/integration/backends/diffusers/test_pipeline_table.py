"""Pipeline classes of every kind: what omni returns is what diffusers returns, number by number."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
from support.omni_process import run_omni
from support.tiny_pipelines import declarations
from support.tiny_pipelines.build import build
from support.tiny_pipelines.check import SEED, check, omni_output, plain_output
from support.tiny_pipelines.page import classes, rows_of
from support.tiny_pipelines.table import check_all

PAGE = Path(__file__).parents[4] / "docs" / "pipelines.md"
# Inpainting; no prompt; noise from the global generator; pixels without an autoencoder; arrays; a video with sound, and
# one without an axis for the batch; tensors; modular pipelines that make an image, edit one and make a video.
SAMPLE = (
    "FluxFillPipeline",
    "DDPMPipeline",
    "CogView4ControlPipeline",
    "PRXPixelPipeline",
    "StableDiffusionAdapterPipeline",
    "LTX2Pipeline",
    "Cosmos3OmniPipeline",
    "KandinskyV22PriorPipeline",
    "ZImageModularPipeline",
    "FluxKontextModularPipeline",
    "WanModularPipeline",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_returns_what_diffusers_returns_as_on_the_page(name, tmp_path):
    row = check(declarations()[name], tmp_path)
    assert row.verdict == "identical" and row == rows_of(PAGE.read_text())[name]


@pytest.mark.parametrize(
    "name",
    [
        "AuraFlowPipeline",
        "SanaPipeline",
        pytest.param("SanaSprintPipeline", marks=pytest.mark.nightly),
        "StableDiffusionPanoramaPipeline",
    ],
)
def test_without_a_size_the_default_of_the_call_holds(name, tmp_path, monkeypatch):
    """It is not the one that the sample size of the denoiser suggests. A smaller one keeps the test short."""
    # The table has no deprecated classes; this one has the parts of its base.
    declared = declarations().get(name) or replace(declarations()["StableDiffusionPipeline"], name=name)
    call = inspect.unwrap(getattr(diffusers, name).__call__)
    size = {"height": 32, "width": 64}
    parameters = [each for each in inspect.signature(call).parameters.values() if each.default is not each.empty]
    monkeypatch.setattr(call, "__defaults__", tuple(size.get(each.name, each.default) for each in parameters))
    unsized = replace(declared, call={key: value for key, value in declared.call.items() if key not in size})
    build(unsized, tmp_path)
    ((plain,), (made,)) = plain_output(unsized, tmp_path), omni_output(unsized, tmp_path)
    assert plain.shape[:2] == (32, 64)
    np.testing.assert_array_equal(made, plain)


@pytest.mark.nightly
def test_embeddings_are_written_as_numpy_files(tmp_path):
    prior, folder = declarations()["KandinskyV22PriorPipeline"], tmp_path / "checkpoint"
    build(prior, folder)
    options = ("--num-inference-steps", "2", "--seed", str(SEED), "--output-dir", str(tmp_path / "out"), "--json")
    ended = run_omni(tmp_path, "generate", "--model", str(folder), *options, prior.call["prompt"])
    assert ended.code == 0, ended.err
    tensors = json.loads(ended.out)["results"][0]["outputs"]
    assert [tensor["name"] for tensor in tensors] == ["image_embeds", "negative_image_embeds"]
    for tensor, expected in zip(tensors, plain_output(prior, folder), strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / tensor["path"]), expected)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's, that pipelines call: they run all the same
def test_the_whole_page_is_up_to_date():
    rows = {row.name: row for row in check_all(classes())}
    assert rows == rows_of(PAGE.read_text()), "run scripts/pipeline_table.py --write"
