"""Check that an AR stage runs in its `cudagraph_mode`, which vLLM would otherwise lower silently."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.platforms import current_platform

from omni_cli.config.schema import ARStageConfig
from omni_cli.errors import StageError


def check_platform(stage: ARStageConfig) -> None:
    """Raise `StageError` if the platform has no CUDA graphs."""
    if stage.cudagraph_mode != "none" and current_platform.is_cpu():
        raise StageError(
            f"`cudagraph_mode: {stage.cudagraph_mode}` needs a CUDA device, and the installed vLLM is for CPUs",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode=none",
        )


def check_settled(stage: ARStageConfig, mode: str, execution_counters: Mapping[str, float]) -> None:
    """Raise `StageError` if vLLM chose another mode than the stage's or captured no graph."""
    asked = stage.cudagraph_mode
    if mode != asked:
        raise StageError(
            f"`cudagraph_mode` is {asked}, but vLLM runs {mode}",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode={mode}; `-v` shows vLLM's reason",
        )
    if mode != "none" and not execution_counters["graphs_captured"]:
        raise StageError(
            f"`cudagraph_mode` is {asked}, but vLLM has captured no graph",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode=none",
        )
