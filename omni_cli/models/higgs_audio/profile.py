"""The default profile of a Higgs Audio v2 checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 2048, "cuda": 4096}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return backbone and codec with the sampling of the model's own examples."""
    backbone = decoder_settings(read_config(folder), machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)
    sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_tokens": min(1024, backbone["max_model_len"] // 2)}
    return {
        "backbone": {"kind": "ar", "backend": "vllm", **backbone, "sampling": sampling},
        "codec": {
            "kind": "diffusion",
            "backend": "vllm",
            "input": "backbone",
            "max_num_seqs": _MAX_NUM_SEQS[machine.device],
            "execution": "eager",
            "output_copy": "async",
        },
    }
