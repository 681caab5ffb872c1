"""The default profile of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import kv_cache, read_config, weights_bytes
from omni_cli.checkpoints.files import read_dtype
from omni_cli.families import Machine

# Share of the memory, weights included: a CPU's is shared with everything else that runs.
_SHARE = {"cpu": 0.5, "cuda": 0.85}
_MAX_LENGTH = {"cpu": 8192, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 64}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """One stage; its context and its KV cache are sized for the machine."""
    config = read_config(folder)
    sizes = kv_cache(
        config.get("text_config") or config,
        read_dtype(folder),
        max_model_len=_MAX_LENGTH[machine.device],
        max_num_seqs=_MAX_NUM_SEQS[machine.device],
        room_bytes=int(machine.memory_bytes * _SHARE[machine.device]) - weights_bytes(folder),
    )
    return {
        "model": {
            "kind": "ar",
            "backend": "vllm",
            **sizes,
            "cudagraph_mode": "none" if machine.device == "cpu" else "full_and_piecewise",
            "output_copy": "async",
            "sampling": {"temperature": 0.0, "max_tokens": min(256, sizes["max_model_len"] // 2)},
        }
    }
