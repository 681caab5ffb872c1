"""The default profile of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 4096, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return all three stages, or the thinker if the checkpoint has no talker, with transformers' sampling."""
    config = read_config(folder)
    is_cpu = machine.device == "cpu"
    speaks = bool(config.get("enable_audio_output", True))
    decoders = {"thinker": config["thinker_config"]["text_config"]}
    if speaks:
        decoders["talker"] = config["talker_config"]["text_config"]

    def common(name: str) -> dict[str, Any]:
        return decoder_settings(decoders[name], machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)

    thinker = {
        "kind": "ar",
        "backend": "vllm",
        **common("thinker"),
        "sampling": {"temperature": 0.0, "max_tokens": 1024},
    }
    if not speaks:
        return {"thinker": thinker}
    return {
        "thinker": thinker,
        "talker": {
            "kind": "ar",
            "backend": "vllm",
            "input": "thinker",
            **common("talker"),
            "sampling": {
                "temperature": 0.9,
                "top_k": 50,
                "repetition_penalty": 1.05,
                "max_tokens": 1024 if is_cpu else 4096,
            },
        },
        "code2wav": {
            "kind": "diffusion",
            "backend": "vllm",
            "input": "talker",
            "max_num_seqs": 8 if is_cpu else 32,
            "execution": "eager" if is_cpu else "cudagraph",
            "output_copy": "async",
        },
    }
