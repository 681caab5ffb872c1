"""A KV cache that is too small for a set of requests, so that the engine has to preempt some."""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.stage_weights import stage_decoders
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.engine.memory_plan import cache_bytes_per_token

_BLOCK_SIZE = 32


def small_cache_overrides(config: EngineConfig, folder: Path, num_tokens: int) -> tuple[str, ...] | None:
    """Return overrides of the first AR stage: no prefix cache, and a KV cache for `num_tokens` in all.

    None for a chain without an AR stage, and for a model whose cache has an unknown size.
    """
    stage = next((stage for stage in config.stages if isinstance(stage, ARStageConfig)), None)
    if stage is None:
        return None
    token_bytes = cache_bytes_per_token(stage_decoders(config, folder).get(stage.name, {}), config.dtype)
    if token_bytes is None:
        return None
    # vLLM reserves one block.
    block_size = stage.block_size or _BLOCK_SIZE
    num_blocks = -(-num_tokens // block_size) + 1
    return (
        f"{stage.name}.enable_prefix_caching=false",
        f"{stage.name}.block_size={block_size}",
        f"{stage.name}.max_model_len={num_blocks * block_size - block_size}",
        f"{stage.name}.kv_cache_memory_bytes={num_blocks * block_size * token_bytes // stage.num_ranks}",
    )
