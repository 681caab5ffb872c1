"""The ways a denoiser can run: eager, or with its repeated blocks compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_cli.config.engine_config import DiffusionStageConfig
from omni_cli.engine.diffusers.pipeline_run import find_denoiser
from omni_cli.errors import StageError


def check_supported(config: DiffusionStageConfig) -> None:
    """`StageError` for what a stage on a diffusers pipeline cannot do; looks at the configuration only."""
    if config.execution == "cudagraph":
        raise StageError(
            f"stage `{config.name}`: `execution: cudagraph` is not available for diffusers pipelines",
            stage=config.name,
            hint=f"--set {config.name}.execution=eager",
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(config, name) != 1:
            raise StageError(
                f"stage `{config.name}`: a diffusers pipeline runs in one process on one device, "
                f"`{name}` cannot be {getattr(config, name)}",
                stage=config.name,
                hint=f"--set {config.name}.{name}=1",
            )
    for name in ("sway_coefficient", "max_model_len", "gpu_memory_utilization"):
        if getattr(config, name) is not None:
            raise StageError(
                f"stage `{config.name}`: `{name}` has no effect on a diffusers pipeline",
                stage=config.name,
                hint=f"remove `{name}` from the stage",
            )


def prepare_execution(pipeline: Any, config: DiffusionStageConfig) -> Mapping[str, Any]:
    """Make the pipeline run as `config.execution` says; returns what is in place, for `effective`.

    `StageError` when the model declares no repeated blocks to compile. Compiling itself happens in the first
    call.
    """
    if config.execution == "eager":
        return {"execution": "eager"}
    denoiser = find_denoiser(pipeline)
    if denoiser is None or not getattr(denoiser, "_repeated_blocks", None):
        model = "no denoiser that is known" if denoiser is None else type(denoiser).__name__
        raise StageError(
            f"stage `{config.name}`: `execution: compile` needs a model that declares its repeated blocks; "
            f"{type(pipeline).__name__} has {model}",
            stage=config.name,
            hint=f"--set {config.name}.execution=eager",
        )
    try:
        denoiser.compile_repeated_blocks(fullgraph=True)
    except ValueError as error:
        hint = f"--set {config.name}.execution=eager"
        raise StageError(f"stage `{config.name}`: {error}", stage=config.name, hint=hint) from error
    blocks = [m for m in denoiser.modules() if type(m).__name__ in denoiser._repeated_blocks]
    return {"execution": "compile", "compiled_blocks": len(blocks)}


def num_compiled_graphs() -> int:
    """How many graphs torch has compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
