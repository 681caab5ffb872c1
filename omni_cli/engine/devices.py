"""Devices of this machine, determined without importing torch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from omni_cli.config.schema import ARStageConfig, EngineConfig, StageConfig
from omni_cli.errors import StageError, UsageError

INSTALL_RAY = "install the extra `ray`: `pip install 'omni-cli[ray]'`"
NO_RAY_ON_CPU = "current platform cpu does not support ray."
"""vLLM's message if there is no CUDA device."""


def has_cuda_device() -> bool:
    """Return True if a visible NVIDIA device exists, by the driver's device files."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def has_ray() -> bool:
    """Return True if Ray is installed, without importing it."""
    return importlib.util.find_spec("ray") is not None


def check_devices(config: EngineConfig) -> None:
    """Raise `StageError` or `UsageError` for a stage that needs a CUDA device or Ray if this machine has none."""
    for stage in config.stages:
        if isinstance(stage, ARStageConfig) and stage.distributed_executor_backend == "ray":
            check_ray(stage.name, has_device=has_cuda_device(), has_ray=has_ray())
    if has_cuda_device():
        return
    if config.mps is True:
        raise UsageError("`mps: true` needs a CUDA device, and this machine has none", hint="--set mps=false")
    for stage in config.stages:
        for key, value, without in keys_for_cuda(stage):
            raise StageError(
                f"stage `{stage.name}`: `{key}: {value}` needs a CUDA device, and this machine has none",
                stage=stage.name,
                hint=f"--set {stage.name}.{key}={without}",
            )


def keys_for_cuda(stage: StageConfig) -> Iterator[tuple[str, str, str]]:
    """Yield keys whose values need a CUDA device, with the values that do not."""
    keys: list[tuple[str, str, str]]
    if isinstance(stage, ARStageConfig):
        keys = [("cudagraph_mode", stage.cudagraph_mode, "none")]
    else:
        keys = [("execution", stage.execution, "eager"), ("offload", stage.offload, "none")]
        if stage.quantization == "float8_dynamic":
            keys.append(("quantization", stage.quantization, "none"))
    yield from (key for key in keys if key[1] not in (key[2], "compile"))


def check_ray(stage: str, *, has_device: bool, has_ray: bool) -> None:
    """Raise `UsageError` for a stage with ranks on Ray, if vLLM or the installation does not support that."""
    if not has_device:
        raise UsageError(
            f"stage `{stage}`: `distributed_executor_backend: ray` needs CUDA devices, and this machine has none; "
            f"vLLM says: {NO_RAY_ON_CPU}",
            hint=f"--set {stage}.distributed_executor_backend=mp",
        )
    if not has_ray:
        raise UsageError(
            f"stage `{stage}`: `distributed_executor_backend: ray` needs Ray, which is not installed",
            hint=INSTALL_RAY,
        )
