"""Stages that tests load themselves, and their requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import derive_profile
from omni_cli.checkpoints.files import read_family, read_model_kind
from omni_cli.config.families import Machine
from omni_cli.config.schema import EngineConfig, StageConfig
from omni_cli.core.errors import OmniError
from omni_cli.engine.memory_plan import plan_start
from omni_cli.engine.process.stage_process import load_stage
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Alive, Failure, Progress
from omni_cli.stage.protocol import StageSpec


def get_spec(stage: StageConfig, model: str) -> StageSpec:
    """A stage of the checkpoint in the folder `model`, in float32; code beside it is trusted."""
    kinds, trusted = (read_family(model), read_model_kind(model)), any(Path(model).glob("*.py"))
    return StageSpec(stage, model, *kinds, dtype="float32", seed=0, trust_remote_code=trusted)


def derived_stages(folder: str) -> Sequence[StageConfig]:
    """The stages that run a checkpoint without a profile on a CPU."""
    plan = plan_start(EngineConfig.model_validate(derive_profile(Path(folder), Machine("cpu"), folder)), Path(folder))
    assert plan is not None
    return plan.config.stages


def load(stage: StageConfig, model: str) -> Any:
    """Load a stage in this process, which vLLM then binds."""
    return load_stage(get_spec(stage, model), lambda report: None)


def run_requests(stage: Any, requests: Sequence[GenerateRequest]) -> list[str | list[Any]]:
    """Run requests at once; return the reports of each, or the error that it failed with."""
    ends: dict[str, Any] = {request.request_id: [] for request in requests}
    for request in requests:
        try:
            stage.add(request)
        except OmniError as error:
            ends[request.request_id] = f"{type(error).__name__}: {error.message}"
    while stage.has_work():
        for report in stage.step():
            if isinstance(report, Failure):
                ends[str(report.request_id)] = report.message
            elif not isinstance(report, Alive | Progress):
                ends[report.request_id].append(report)
    return list(ends.values())


def step_outputs(stage: Any, emitted: list[Any]) -> list[Any]:
    """Run a step; return its reports but those of progress. `emitted` are those that the stage sends in between."""
    emitted.clear()
    last = stage.step()
    return [report for report in (*emitted, *last) if not isinstance(report, Alive | Progress)]
