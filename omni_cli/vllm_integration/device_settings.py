"""What an engine of vLLM is told about the device that it runs on; `vllm_stage` is to be imported first."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.platforms import current_platform

from omni_cli.config.schema import CudagraphMode

# Of a device's memory; vLLM wants more than none.
SMALLEST_SHARE = 1e-6


def execution_args(cudagraph_mode: CudagraphMode) -> dict[str, Any]:
    """vLLM `EngineArgs` for how a step runs on the device that vLLM is installed for."""
    if current_platform.is_cpu():
        # Inductor takes minutes to compile a model for the CPU, and there are no graphs to capture.
        return {"enforce_eager": True}
    return {"compilation_config": {"cudagraph_mode": cudagraph_mode.upper()}}


def use_whole_float32() -> None:
    """Have this process multiply float32 as such: attention (Triton) and convolutions (cuDNN) would use TF32's 10 bits.

    Rounded that far, tokens differ from the reference's within twenty steps, and alone from those in a batch.
    """
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    torch.backends.cudnn.allow_tf32 = False


def with_given_cache(args: dict[str, Any]) -> dict[str, Any]:
    """`EngineArgs` that ask for no share of the device's memory where they give the KV cache a size.

    vLLM looks at the share first all the same: without this, a stage would need nine tenths of the device to be free.
    """
    if current_platform.is_cpu() or "kv_cache_memory_bytes" not in args:
        return args
    return {"gpu_memory_utilization": SMALLEST_SHARE, **args}
