"""A request that needs more memory than the process may have, then one that does not: what the stage says to both."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig

_ROOM_BYTES = 96 << 20


def answer(model: str) -> dict[str, object]:
    torch.set_num_threads(1)
    stage = DiffusionStageConfig.create("image", num_inference_steps=1, call={"true_cfg_scale": 1.0})
    executor = DiffusersPipelineExecutor(stage, model, "float32", "cpu")

    def make(size: int) -> dict[str, object]:
        request = DiffusionRequest("0", "a red cat", height=size, width=size, num_inference_steps=2)
        (output,) = executor.execute_model((request,))
        if output.error is not None:
            return {"error": output.error.message, "hint": output.error.hint}
        assert output.images
        return {"sum": int(output.images[0].sum())}

    first = make(64)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return {"first": first, "large": make(512), "again": make(64)}
