"""Offloading that a stage on a diffusers pipeline chooses and advises."""

from __future__ import annotations

import pytest

from omni_cli.backends.diffusers.memory import advise_settings, copies_ahead
from omni_cli.config.schema import DiffusionStageConfig


@pytest.mark.parametrize(
    ("keys", "device", "expected"),
    [
        ({}, "cuda", True),
        ({"offload_type": "leaf_level"}, "cuda:1", True),
        ({"num_blocks_per_group": 2}, "cuda", False),
        ({"use_stream": False}, "cuda", False),
        ({}, "cpu", False),
    ],
)
def test_groups_are_copied_ahead_where_diffusers_can(keys, device, expected):
    assert copies_ahead(DiffusionStageConfig.create("image", offload="group", **keys), device) is expected


def test_the_faster_offload_is_advised_first():
    stage = DiffusionStageConfig.create("image")
    assert list(advise_settings(stage, "cuda")) == ["image.offload=group", "image.offload=model"]
    compiled = DiffusionStageConfig.create("image", execution="compile")
    assert list(advise_settings(compiled, "cuda")) == ["image.offload=model"]
