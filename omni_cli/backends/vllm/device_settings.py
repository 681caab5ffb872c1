"""Settings of a vLLM engine that depend on the device, and checks that vLLM runs in them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from vllm.platforms import current_platform

from omni_cli.config.schema import ARStageConfig, CudagraphMode
from omni_cli.core.errors import StageError

# Share of a device's memory; vLLM requires more than zero.
SMALLEST_SHARE = 1e-6


def execution_args(cudagraph_mode: CudagraphMode) -> dict[str, object]:
    """Return vLLM's `EngineArgs` for the execution of a step on the device that vLLM is installed for."""
    if current_platform.is_cpu():
        # Compiling for the CPU takes Inductor minutes, and there are no graphs to capture.
        return {"enforce_eager": True}
    compilation: dict[str, object] = {"cudagraph_mode": cudagraph_mode.upper()}
    if cudagraph_mode == "full":  # vLLM's own limit is twice the requests of a step, and prompts have more tokens
        compilation["max_cudagraph_capture_size"] = 512
    return {"compilation_config": compilation}


def use_whole_float32() -> None:
    """Disable TF32 in this process, for attention (Triton) and convolutions (cuDNN).

    With its 10-bit mantissa, tokens differ from the reference within twenty steps, and alone from in a batch.
    """
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    torch.backends.cudnn.allow_tf32 = False


def with_given_cache(args: dict[str, object]) -> dict[str, object]:
    """Return `EngineArgs` that reserve no share of the device's memory if they set the size of the KV cache.

    vLLM checks the share in any case: by default, 92 % of the device would have to be free. A diffusion has
    no KV cache: its share, where the profile has one, must be free.
    """
    if current_platform.is_cpu() or "kv_cache_memory_bytes" not in args:
        return args
    if args.get("runner") == "pooling":
        return {"gpu_memory_utilization": SMALLEST_SHARE, **args}
    return {**args, "gpu_memory_utilization": SMALLEST_SHARE}


def check_effective(stage: ARStageConfig, mode: str, counters: Mapping[str, float]) -> None:
    """Raise `StageError` if vLLM chose another mode than the stage's or captured no graph."""
    wanted = stage.cudagraph_mode
    if mode != wanted:
        raise StageError(
            f"`cudagraph_mode` is {wanted}, but vLLM runs {mode}",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode={mode}; `-v` shows vLLM's reason",
        )
    if mode != "none" and not counters["graphs_captured"]:
        raise StageError(
            f"`cudagraph_mode` is {wanted}, but vLLM has captured no graph",
            stage=stage.name,
            hint=f"--set {stage.name}.cudagraph_mode=none",
        )
