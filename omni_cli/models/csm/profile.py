"""The default profile of a CSM checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import kv_cache, read_config, weights_bytes
from omni_cli.checkpoints.files import read_dtype
from omni_cli.families import Machine

# Shares of a device that both stages use.
_SHARES = {"backbone": 0.6, "codec": 0.2}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return backbone and codec with the released model's sampling."""
    is_cpu = machine.device == "cpu"
    # Half of a host's memory, because other programs run beside the stages.
    room_bytes = machine.memory_bytes // 2 - weights_bytes(folder)
    num_seqs = _MAX_NUM_SEQS[machine.device]
    sizes = kv_cache(
        read_config(folder), read_dtype(folder), max_model_len=2048, max_num_seqs=num_seqs, room_bytes=room_bytes
    )
    if not is_cpu:
        del sizes["kv_cache_memory_bytes"]
    return {
        "backbone": {
            "kind": "ar",
            "backend": "vllm",
            **sizes,
            **({} if is_cpu else {"gpu_memory_utilization": _SHARES["backbone"]}),
            "cudagraph_mode": "none" if is_cpu else "full_and_piecewise",
            "output_copy": "async",
            "sampling": {"temperature": 0.9, "top_k": 50, "max_tokens": min(1024, sizes["max_model_len"] // 2)},
        },
        "codec": {
            "kind": "diffusion",
            "backend": "vllm",
            "input": "backbone",
            "max_num_seqs": num_seqs,
            **({} if is_cpu else {"gpu_memory_utilization": _SHARES["codec"]}),
            "execution": "eager",
            "output_copy": "async",
        },
    }
