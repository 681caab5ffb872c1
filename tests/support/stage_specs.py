"""The `StageSpec` of a stage, for tests that load one themselves."""

from __future__ import annotations

from typing import Any

from omni_cli.checkpoints.files import read_family, read_model_kind
from omni_cli.config.schema import StageConfig
from omni_cli.stage.messages import Alive, Progress
from omni_cli.stage.protocol import StageSpec


def get_spec(stage: StageConfig, model: str) -> StageSpec:
    """A stage of the checkpoint in the folder `model`, in float32."""
    return StageSpec(
        stage, model, read_family(model), read_model_kind(model), dtype="float32", seed=0, trust_remote_code=False
    )


def step_outputs(stage: Any, emitted: list[Any]) -> list[Any]:
    """Run a step; return its reports but those of progress. `emitted` are those that the stage sends in between."""
    emitted.clear()
    last = stage.step()
    return [report for report in (*emitted, *last) if not isinstance(report, Alive | Progress)]
