"""Devices of this machine, determined without importing torch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_cli.config.schema import ARStageConfig, EngineConfig, StageConfig
from omni_cli.core.errors import StageError, UsageError
from omni_cli.core.machine import Gpu, read_gpus, visible_devices

INSTALL_RAY = "install the extra `ray`: `pip install 'omni-cli[ray]'`"
NO_RAY_ON_CPU = "current platform cpu does not support ray."
"""vLLM's message if there is no CUDA device."""


@dataclass(frozen=True)
class Devices:
    """CUDA devices: those that torch sees, in its order, and all that the driver has."""

    visible: tuple[Gpu, ...]
    all: tuple[Gpu, ...]

    def of_stage(self, stage: StageConfig) -> Iterator[Gpu | str]:
        """Yield the device of each rank, or what is missing in its place; nothing for a stage on the CPU."""
        if not self.visible or stage.devices == "cpu":
            return
        if stage.devices is None:
            yield from self.visible[: stage.num_ranks]
            if len(self.visible) < stage.num_ranks:
                yield f"{stage.num_ranks} CUDA devices for stage `{stage.name}` ({len(self.visible)} visible)"
            return
        for name in stage.devices.split(","):
            yield self._find_device(name, stage) or f"the device `{name}` of stage `{stage.name}`"

    def _find_device(self, name: str, stage: StageConfig) -> Gpu | None:
        number = name.removeprefix("cuda:")
        if stage.backend == "diffusers" and stage.num_ranks == 1:
            # Torch's number, which counts visible devices; other stages get a CUDA_VISIBLE_DEVICES of their own.
            return self.visible[int(number)] if number.isdigit() and int(number) < len(self.visible) else None
        devices = (gpu for gpu in (*self.all, *self.visible) if gpu.is_called(name))
        return next(devices, None)


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
        keys = [("execution", stage.execution or "eager", "eager"), ("offload", stage.offload, "none")]
        if stage.quantization == "float8_dynamic":
            keys.append(("quantization", stage.quantization, "none"))
    if stage.enable_sleep_mode:
        keys.append(("enable_sleep_mode", "true", "false"))
    yield from (key for key in keys if key[1] not in (key[2], "compile"))


def check_sleep(config: EngineConfig, level: int) -> None:
    """Raise `UsageError` if a stage could not sleep at this of vLLM's levels and wake up as it was."""
    for stage in config.stages:
        if level == 2 and (stage.backend == "vllm" or stage.num_ranks > 1):
            where = "on vLLM" if stage.backend == "vllm" else "of several ranks"
            message = f"level 2 drops weights, which stage `{stage.name}`, {where}, cannot read again"
            raise UsageError(message, hint="use level 1")
        if stage.backend == "vllm" and not stage.enable_sleep_mode and has_cuda_device():
            hint = f"start the server with `--set {stage.name}.enable_sleep_mode=true`"
            raise UsageError(f"stage `{stage.name}` was loaded without `enable_sleep_mode`", hint=hint)


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


def read_devices() -> Devices | str:
    """Return this machine's CUDA devices, or the reason why their driver does not report them."""
    if not has_cuda_device():
        return Devices((), ())
    gpus = read_gpus()
    if not gpus.devices:
        return gpus.error or "nvidia-smi is not installed"
    shown = visible_devices([gpu.uuid for gpu in gpus.devices], os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Devices(tuple(gpus.devices[index] for index in shown), gpus.devices)


def load_groups(stages: Sequence[StageConfig]) -> list[list[list[str]]]:
    """Group stages by CUDA device, in waves that load one after another; groups, and a wave's stages, load in parallel.

    vLLM sizes an AR stage by the free memory of its device, unless the size of its KV cache is given: it loads alone.
    """
    if not has_cuda_device():
        return [[[stage.name for stage in stages]]]
    devices: dict[str | None, list[StageConfig]] = {}
    for stage in stages:
        devices.setdefault(stage.devices, []).append(stage)
    groups = []
    for sharing in devices.values():
        alone = [
            each.name for each in sharing if isinstance(each, ARStageConfig) and each.kv_cache_memory_bytes is None
        ]
        sized = [each.name for each in sharing if each.name not in alone]
        groups.append([*([sized] if sized else []), *([name] for name in alone)])
    return groups
