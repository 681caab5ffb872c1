"""Memory of a stage's LoRA adapters, known before anything loads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.adapters import DEFAULT_RANK
from omni_cli.checkpoints.derive import ITEMSIZES
from omni_cli.checkpoints.files import read_header
from omni_cli.config.lora_keys import SECOND_DENOISER, Adapter
from omni_cli.config.pipeline_keys import DENOISERS
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, StageConfig


def adapter_bytes(stage: StageConfig, decoder: Mapping[str, Any], dtype: str, *, is_cuda: bool) -> int | None:
    """Return the bytes that a stage's adapters take on its device, 0 without adapters; None if unknown.

    In vLLM a slot for each, of `max_lora_rank`, in every module of the language model whose sizes are in `decoder`.
    diffusers loads their files, in the type of the denoiser; one without safetensors is unknown.
    """
    if not stage.lora:
        return 0
    if isinstance(stage, ARStageConfig):
        per_rank = _sizes(decoder, with_experts=is_cuda)
        # One slot more stays empty on a CPU, see `EngineAdapters.engine_args`.
        slots = len(stage.lora) + (not is_cuda)
        rank = stage.max_lora_rank or DEFAULT_RANK
        return None if per_rank is None else slots * rank * per_rank * ITEMSIZES[dtype]
    types = stage.torch_dtype if isinstance(stage, DiffusionStageConfig) else {}
    itemsize = ITEMSIZES[next((types[name] for name in DENOISERS if name in types), dtype)]
    counts = [_count(adapter) for adapter in stage.adapters]
    known = [count for count in counts if count is not None]
    return sum(known) * itemsize if len(known) == len(counts) else None


def _sizes(decoder: Mapping[str, Any], *, with_experts: bool) -> int | None:
    """Return the sum of inputs and outputs of a decoder's matrices, those of its vocabulary included; None if unknown.

    Those are the numbers that an adapter of rank 1 has if it adapts all of them.
    """
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
    layers, heads, hidden, vocabulary = (decoder.get(name) or 0 for name in names)
    experts = decoder.get("num_experts") or decoder.get("num_local_experts") or 1
    inner: Any = decoder.get("moe_intermediate_size") if experts > 1 else None
    inner = inner or decoder.get("intermediate_size")
    kv_heads = decoder.get("num_key_value_heads") or heads
    if not all(isinstance(size, int) and size for size in (layers, heads, hidden, vocabulary, inner, kv_heads)):
        return None
    head_dim = decoder.get("head_dim") or hidden // heads
    # Query and output, key and value; gate, up and down.
    attention = 2 * (hidden + heads * head_dim) + 2 * (hidden + kv_heads * head_dim)
    # vLLM adapts experts on GPUs only.
    feed_forward = (experts if with_experts or experts == 1 else 0) * 3 * (hidden + inner)
    return int(layers * (attention + feed_forward) + 2 * (hidden + vocabulary))


def _files_in(folder: Path) -> list[Path]:
    return sorted((*folder.glob("*.safetensors"), *folder.glob(f"{SECOND_DENOISER}/*.safetensors")))


def _count(adapter: Adapter) -> int | None:
    """Count the numbers in an adapter's file. Raises `CheckpointError` for one that cannot be read."""
    files = [adapter.path] if adapter.path.is_file() else _files_in(adapter.path)
    if not files or any(file.suffix != ".safetensors" for file in files):
        return None
    return sum(int(math.prod(entry["shape"])) for file in files for entry in read_header(file).values())
