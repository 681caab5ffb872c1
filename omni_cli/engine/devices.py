"""What devices this machine has, without importing torch."""

from __future__ import annotations

import os
from pathlib import Path

from omni_cli.config.engine_config import ARStageConfig, EngineConfig
from omni_cli.errors import StageError


def has_cuda_device() -> bool:
    """Whether an NVIDIA device is there and visible; the driver's device files say so."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def check_devices(config: EngineConfig) -> None:
    """`StageError` for a stage that needs a device that this machine lacks."""
    if has_cuda_device():
        return
    key: str
    value: str
    for stage in config.stages:
        if isinstance(stage, ARStageConfig):
            key, value, without = "cudagraph_mode", stage.cudagraph_mode, "none"
        else:
            key, value, without = "execution", stage.execution, "eager"
        if value == without or value == "compile":
            continue
        raise StageError(
            f"stage `{stage.name}`: `{key}: {value}` needs a CUDA device, and this machine has none",
            stage=stage.name,
            hint=f"--set {stage.name}.{key}={without}",
        )
