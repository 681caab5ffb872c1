"""The order in which stages load: all at once, unless one measures how much memory the others leave."""

from __future__ import annotations

from omni_cli.config.schema import ARStageConfig, StageConfig
from omni_cli.engine.devices import has_cuda_device
from omni_cli.engine.process.stage_client import StageClient


def load_groups(clients: list[StageClient]) -> list[list[list[StageClient]]]:
    """Group stages by CUDA device, in waves that load one after another; groups, and a wave's stages, load in parallel.

    vLLM sizes an AR stage by the free memory of its device, unless the size of its KV cache is given: it loads alone.
    """
    if not has_cuda_device():
        return [[clients]]
    devices: dict[str | None, list[StageClient]] = {}
    for client in clients:
        devices.setdefault(client.spec.stage.devices, []).append(client)
    groups = []
    for sharing in devices.values():
        sized = [client for client in sharing if _is_sized(client.spec.stage)]
        groups.append([*([sized] if sized else []), *([client] for client in sharing if client not in sized)])
    return groups


def _is_sized(stage: StageConfig) -> bool:
    return not isinstance(stage, ARStageConfig) or stage.kv_cache_memory_bytes is not None
