"""Pipeline classes of every kind: what omni returns is what diffusers returns, number by number."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_pipelines import declarations
from support.tiny_pipelines.check import check
from support.tiny_pipelines.page import classes, rows_of
from support.tiny_pipelines.table import check_all

PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"
# Inpainting; no prompt; noise from the global generator; pixels without an autoencoder; arrays; a video with sound, and
# one without an axis for the batch.
SAMPLE = (
    "FluxFillPipeline",
    "DDPMPipeline",
    "CogView4ControlPipeline",
    "PRXPixelPipeline",
    "StableDiffusionAdapterPipeline",
    "LTX2Pipeline",
    "Cosmos3OmniPipeline",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_returns_what_diffusers_returns_as_on_the_page(name, tmp_path):
    row = check(declarations()[name], tmp_path)
    assert row.verdict == "identical" and row == rows_of(PAGE.read_text())[name]


@pytest.mark.nightly
def test_the_whole_page_is_up_to_date():
    rows = {row.name: row for row in check_all(classes())}
    assert rows == rows_of(PAGE.read_text()), "run scripts/pipeline_table.py --write"
