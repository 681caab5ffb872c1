"""The default profile of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 8192, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 64}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """One stage; its context is sized for the machine."""
    config = read_config(folder)
    decoder = config.get("text_config") or config
    settings = decoder_settings(decoder, machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)
    return {
        # Sampled as the checkpoint's generation_config.json has it, up to the end of the context.
        "model": {"kind": "ar", "backend": "vllm", **settings}
    }
