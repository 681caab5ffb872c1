"""Device settings of a vLLM engine; import `vllm_stage` first."""

from __future__ import annotations

import os

import torch
from vllm.platforms import current_platform

from omni_cli.config.schema import CudagraphMode

# Share of a device's memory; vLLM requires more than zero.
SMALLEST_SHARE = 1e-6


def execution_args(cudagraph_mode: CudagraphMode) -> dict[str, object]:
    """Return vLLM's `EngineArgs` for the execution of a step on the device that vLLM is installed for."""
    if current_platform.is_cpu():
        # Compiling for the CPU takes Inductor minutes, and there are no graphs to capture.
        return {"enforce_eager": True}
    return {"compilation_config": {"cudagraph_mode": cudagraph_mode.upper()}}


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
