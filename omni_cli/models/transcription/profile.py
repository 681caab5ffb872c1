"""The default profile of a speech recognition model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 4096, "cuda": 4096}
# A model that takes a sound as a whole, 12.5 tokens for each second.
_MAX_MODEL_LEN_OF_WHOLE = {"cpu": 8192, "cuda": 32_768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 64}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return one stage, which is greedy, as transformers is for such models."""
    config = read_config(folder)
    whisper = {"max_position_embeddings": config.get("max_target_positions")}
    decoder = config.get("thinker_config", config).get("text_config", whisper)
    longest = _MAX_MODEL_LEN_OF_WHOLE if config.get("model_type") == "voxtral" else _MAX_MODEL_LEN
    settings = decoder_settings(decoder, machine, max_model_len=longest, max_num_seqs=_MAX_NUM_SEQS)
    if machine.device == "cuda" and config.get("is_encoder_decoder"):
        # All that vLLM 0.32 has for cross-attention.
        settings["cudagraph_mode"] = "full_decode_only"
    return {"transcriber": {"kind": "ar", "backend": "vllm", **settings, "sampling": {"temperature": 0.0}}}
