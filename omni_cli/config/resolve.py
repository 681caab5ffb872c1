"""A checked profile to the resolved configuration, and back to a profile's data for showing it."""

from __future__ import annotations

import dataclasses
from typing import Any

from omni_cli.config.engine_config import (
    ARStageConfig,
    DiffusionStageConfig,
    EngineConfig,
    StageConfig,
)
from omni_cli.config.schema import ARStage, DiffusionStage, Profile


def resolve(profile: Profile, *, trust_remote_code: bool = False) -> EngineConfig:
    """The configuration that everything behind the command line works from."""
    return EngineConfig(
        name=profile.name,
        description=profile.description,
        model=profile.model,
        dtype=profile.dtype,
        stages=tuple(_resolve_stage(name, stage) for name, stage in profile.stages.items()),
        seed=profile.seed,
        trust_remote_code=trust_remote_code,
    )


def to_profile_data(config: EngineConfig) -> dict[str, Any]:
    """The profile that resolves to `config`: every key that has a value, defaults included, in reading order.

    `trust_remote_code` is left out: no profile can say it.
    """
    return {
        "version": 1,
        "name": config.name,
        "description": config.description,
        "model": config.model,
        "dtype": config.dtype,
        "seed": config.seed,
        "stages": {stage.name: _stage_data(stage) for stage in config.stages},
    }


def _resolve_stage(name: str, stage: ARStage | DiffusionStage) -> StageConfig:
    values = {key: getattr(stage, key) for key in type(stage).model_fields}
    if isinstance(stage, ARStage):
        values["sampling"] = stage.sampling.model_dump(exclude_none=True)
        return ARStageConfig(name=name, **values)
    return DiffusionStageConfig(name=name, **values)


def _stage_data(stage: StageConfig) -> dict[str, Any]:
    values = {key: value for key, value in _in_reading_order(stage).items() if value is not None}
    for key in ("sampling", "call"):
        if key in values:
            values[key] = dict(values[key])
            if not values[key]:
                del values[key]
    if getattr(stage, "backend", None) == "diffusers":
        # Meaningless there, and so refused in a profile.
        for key in ("tensor_parallel_size", "pipeline_parallel_size"):
            del values[key]
    return values


def _in_reading_order(stage: StageConfig) -> dict[str, Any]:
    """What the stage is, what only its kind has, what all have, and mappings last."""
    common = [item.name for item in dataclasses.fields(stage)]
    order = ["kind", "backend", "input", *type(stage).__annotations__, *common]
    last = [name for name in ("sampling", "call") if name in order]
    names = [name for name in dict.fromkeys(order) if name not in ("name", *last)]
    return {name: getattr(stage, name) for name in (*names, *last)}
