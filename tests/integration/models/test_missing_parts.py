"""A checkpoint that lacks a part is one error that names the part and the stage, for every family of ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.in_process import run_here

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.engine.checkpoint_fit import check_fit
from omni_cli.errors import CheckpointError
from omni_cli.families import families

# Families whose model classes are ours name the weights that these load.
PROFILES = {
    "qwen2_5_omni": "tiny-omni",
    "qwen3_omni": "tiny-qwen3-omni",
    "glm_image": "tiny-glm-image",
    "csm": "tiny-csm",
}


def without(folder: Path, part: str, broken: Path) -> Path:
    """A copy of a checkpoint without weights whose names begin with `part`."""
    shutil.copytree(folder, broken, copy_function=os.link)
    component, _, prefix = part.rpartition("/")
    for file in (broken / component).glob("*.safetensors"):
        weights = load_file(file)
        kept = {name: weight for name, weight in weights.items() if not name.startswith(prefix)}
        assert 0 < len(kept) < len(weights), part
        file.unlink()
        save_file(kept, file, metadata={"format": "pt"})
    return broken


def test_all_families_with_our_classes_are_listed() -> None:
    assert {name for name, family in families().items() if family.vllm_models} == set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_each_part_is_named(name: str, tmp_path: Path) -> None:
    config = load_profile(PROFILES[name])
    folder = Path(resolve_model(config.model))
    check_fit(config, str(folder))
    roles = families()[name].roles
    assert all(role.needed_weights for role in roles)
    for role in roles:
        for number, part in enumerate(role.needed_weights):
            broken = without(folder, part, tmp_path / f"{role.name}-{number}")
            with pytest.raises(CheckpointError) as caught:
                check_fit(config, str(broken))
            component, _, prefix = part.rpartition("/")
            assert caught.value.message == (
                f"`{broken / component}` has no weights called `{prefix}*`, which stage `{role.name}` needs"
            )


def test_it_is_an_error_of_the_command(tmp_path: Path) -> None:
    broken = without(Path(resolve_model("builtin:tiny-qwen3-omni")), "code2wav.", tmp_path / "broken")
    ended = run_here(tmp_path, "generate", "--model", str(broken), "hello")
    assert ended.code == 2, ended.err
    assert "has no weights called `code2wav.*`, which stage `code2wav` needs" in " ".join(ended.err.split())
    assert not ended.leftovers and not ended.started_others
