"""The default profile of a CSM checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 2048, "cuda": 2048}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return backbone and codec with the released model's sampling."""
    backbone = decoder_settings(read_config(folder), machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)
    return {
        "backbone": {
            "kind": "ar",
            "backend": "vllm",
            **backbone,
            "sampling": {"temperature": 0.9, "top_k": 50, "max_tokens": min(1024, backbone["max_model_len"] // 2)},
        },
        "codec": {
            "kind": "diffusion",
            "backend": "vllm",
            "input": "backbone",
            "max_num_seqs": _MAX_NUM_SEQS[machine.device],
            "execution": "eager",
            "output_copy": "async",
        },
    }
