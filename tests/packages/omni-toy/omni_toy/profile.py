"""The default profile, for checkpoints of any size."""

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import kv_cache, read_config
from omni_cli.checkpoints.files import read_dtype
from omni_cli.families import Machine


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """A writer with room for what the machine can hold, and a painter."""
    sizes = kv_cache(
        read_config(folder),
        read_dtype(folder),
        max_model_len=4096,
        max_num_seqs=8,
        room_bytes=machine.memory_bytes // 4,
    )
    return {
        "writer": {"kind": "ar", "backend": "vllm", **sizes, "sampling": {"temperature": 0.0, "max_tokens": 64}},
        "painter": {"kind": "diffusion", "backend": "vllm", "input": "writer", "num_inference_steps": 4},
    }
