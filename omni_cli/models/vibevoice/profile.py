"""The default profile of a VibeVoice checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 4096, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return the one stage; steps and guidance are the checkpoint's."""
    decoder = read_config(folder)["text_config"]
    speaker = decoder_settings(decoder, machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)
    return {"speaker": {"kind": "ar", "backend": "vllm", **speaker}}
