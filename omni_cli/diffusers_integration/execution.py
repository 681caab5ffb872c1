"""Capabilities of a stage on a diffusers pipeline, and its denoiser in the stage's execution mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_cli.config.key_notes import notes_on
from omni_cli.config.lora_keys import SECOND_DENOISER
from omni_cli.config.pipeline_keys import CACHES_BETWEEN_BLOCKS
from omni_cli.config.schema import DiffusionStageConfig, Execution
from omni_cli.diffusers_integration.pipeline_run import find_denoiser
from omni_cli.errors import StageError

if TYPE_CHECKING:
    from omni_cli.execution.modes import ExecutionMode


def check_supported(config: DiffusionStageConfig) -> None:
    """Raise `StageError` for settings that a stage on a diffusers pipeline does not support."""
    for name, key in type(config).model_fields.items():
        notes = notes_on(key)
        if notes.backend == "vllm" and getattr(config, name) != key.default:
            reason = f": {notes.reason}" if notes.reason else ""
            raise StageError(
                f"stage `{config.name}`: `{name}` has no effect on a diffusers pipeline{reason}",
                stage=config.name,
                hint=notes.hint or f"remove `{name}` from the stage",
            )
    if config.precision is not None and config.torch_dtype:
        raise StageError(
            f"stage `{config.name}`: `precision` is that of every part, and `torch_dtype` that of some",
            stage=config.name,
            hint="remove one of the two",
        )


def check_device(config: DiffusionStageConfig, device: str) -> None:
    """Raise `StageError` if the stage's execution mode needs another device than `device`."""
    if config.execution in ("cudagraph", "compile_cudagraph"):
        from omni_cli.execution.modes import require_cuda

        require_cuda(stage=config.name, device=device, execution=config.execution)


def widest_execution(config: DiffusionStageConfig, device: str) -> Execution:
    """Return the mode, of those that the stage's other keys allow, that contains the others."""
    within_blocks = config.cache.method not in CACHES_BETWEEN_BLOCKS
    if device == "cpu" or config.num_ranks > 1 or within_blocks or config.offload in ("sequential", "group"):
        return "eager"
    if config.lora or config.cache.method != "none" or config.offload != "none":
        return "compile"
    return "compile_cudagraph"


def set_precision(config: DiffusionStageConfig, device: str) -> None:
    """Make float32's arithmetic that of the stage's `precision`, if it has one. Raises `StageError` without TF32."""
    if config.precision is not None:
        from omni_cli.execution.precision import use_precision

        use_precision(config.precision, stage=config.name, device=device)


def precision_in(pipeline: Any) -> str:
    """Read back the arithmetic of all layers of the pipeline's models."""
    from torch import nn

    from omni_cli.execution.precision import get_precision

    return get_precision([part for part in pipeline.components.values() if isinstance(part, nn.Module)])


def prepare_execution(pipeline: object, config: DiffusionStageConfig, device: str) -> ExecutionMode | None:
    """Make the pipeline's denoiser run in mode `config.execution`; None for an eager pipeline without a known one.

    Where the stage leaves it open, the mode is one that contains all that may be chosen. Compilation and capture happen
    in later calls.
    """
    from omni_cli.execution.modes import make_execution_mode

    module = find_denoiser(pipeline)
    if module is not None:
        execution = config.execution or widest_execution(config, device)
        second = getattr(pipeline, SECOND_DENOISER, None)
        return make_execution_mode(
            module,
            execution,
            stage=config.name,
            device=device,
            num_variants=1 + len(config.lora),
            beside=() if second is None else (second,),
        )
    if config.execution in (None, "eager"):
        return None
    raise StageError(
        f"stage `{config.name}`: `execution: {config.execution}` needs a pipeline with a transformer or a UNet, "
        f"and {type(pipeline).__name__} has none",
        stage=config.name,
        hint=f"--set {config.name}.execution=eager",
    )


def choose_device(config: DiffusionStageConfig, rank: int) -> str:
    """Return torch's name for the device of a stage's rank. Raises `StageError` if there is none."""
    import torch

    if config.num_ranks > 1:
        named = {"cpu"} if config.devices is None else set(config.devices.split(","))
        if named == {"cpu"} and (config.devices is not None or not torch.cuda.is_available()):
            return "cpu"
        if torch.cuda.device_count() < config.num_ranks:
            raise StageError(
                f"stage `{config.name}`: `context_parallel` needs {config.num_ranks} devices, and "
                f"{torch.cuda.device_count()} are visible",
                stage=config.name,
            )
        return f"cuda:{rank}"
    if config.devices is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.devices.isdigit():
        return f"cuda:{config.devices}"
    if config.devices == "cpu" or config.devices.removeprefix("cuda:").isdigit():
        return config.devices
    raise StageError(
        f"stage `{config.name}`: a diffusers pipeline runs on one device, not `devices: {config.devices}`",
        stage=config.name,
        hint="name one device, for example `0` or `cpu`",
    )
