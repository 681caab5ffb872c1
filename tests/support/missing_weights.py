"""Errors of loading the models of vLLM's stages without one of their weights, in this process."""

from __future__ import annotations

import copy
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model

from omni_cli.backends.vllm.weights import naming_missing_weights
from omni_cli.checkpoints.files import weight_shapes
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import StageConfig
from omni_cli.core.errors import CheckpointError
from support import tiny_models
from support.stage_specs import derived_stages, load


def answer(profiles: list[str], models: list[str], every: int) -> dict[str, Any]:
    """Try each `every`-th weight of those whose names differ in more than numbers.

    Return by profile or model of `tiny_models`, stage and weight the errors without the weight, with twice its rows,
    and for the first weight with a NaN, null where there is none. A stage is loaded as a whole once, and then only its
    model.
    """
    with tempfile.TemporaryDirectory() as work:
        return {
            name: {stage.name: errors_of(stage, folder, every) for stage in stages}
            for name, folder, stages in chains(Path(work), profiles, models)
        }


def chains(work: Path, profiles: list[str], models: list[str]) -> Iterator[tuple[str, str, Sequence[StageConfig]]]:
    """The folder and the stages on vLLM of each profile and model."""
    for name in profiles:
        config = load_profile(name)
        yield name, resolve_model(config.model), [stage for stage in config.stages if stage.backend == "vllm"]
    for name in models:
        folder = str(getattr(tiny_models, name)(work / name))
        yield name, folder, derived_stages(folder)


def errors_of(config: Any, folder: str, every: int) -> dict[str, list[str | None]]:
    stage = load(config, folder)
    role = stage.spec.family.role(config.name)
    # Of the checkpoint itself, or of a component that is all that the role names.
    (component, *_) = sorted({part.rpartition("/")[0] for part in role.needed_weights}) or [""]
    prefixes = tuple(part.rpartition("/")[2] for part in role.needed_weights if part.rpartition("/")[0] == component)
    model = Path(stage.spec.model)
    names = kinds(model / component, prefixes or ("",))[::every]
    found: dict[str, list[str | None]] = {}
    for name in names:
        ways = ("missing", "larger") if found else ("missing", "larger", "nan")
        found[name] = [error_of(stage, changed) for changed in changes(model, component, name, ways)]
    stage.close()
    return found


def kinds(folder: Path, prefixes: tuple[str, ...]) -> list[str]:
    """The last of the weights whose names differ in numbers only."""
    names = sorted(name for name in weight_shapes(folder) if name.startswith(prefixes))
    return [*{re.sub(r"\d+", "N", name): name for name in names}.values()]


def changes(folder: Path, component: str, name: str, ways: tuple[str, ...]) -> Iterator[str]:
    """Copies of a checkpoint with a change of one weight of a component."""
    for way in ways:
        with tempfile.TemporaryDirectory() as work:
            broken = Path(work, "broken")
            shutil.copytree(folder, broken, copy_function=os.link)
            (file,) = (broken / component).glob("*.safetensors")
            weights = load_file(file)
            weight = weights.pop(name)
            if way == "larger":
                weights[name] = torch.cat([weight.reshape(-1, *weight.shape[1:])] * 2)
            elif way == "nan":
                weights[name] = weight.index_fill(0, torch.tensor(0), torch.nan)
            file.unlink()
            save_file(weights, file, metadata={"format": "pt"})
            yield str(broken)


def error_of(stage: Any, model: str) -> str | None:
    """The error of loading a stage's model from another checkpoint."""
    config = copy.deepcopy(stage.engine.vllm_config)
    config.model_config.model = model
    config.compilation_config.static_forward_context.clear()
    try:
        with naming_missing_weights(replace(stage.spec, model=model)), set_current_vllm_config(config):
            get_model(vllm_config=config)
    except CheckpointError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - the test judges it
        return repr(error)
    return None
