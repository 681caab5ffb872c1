"""The default profile of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config, weights_bytes
from omni_cli.checkpoints.files import read_dtype
from omni_cli.families import Machine

# Shares of a device that all three stages use, as in the profile of the 30B model.
_SHARES = {"thinker": 0.65, "talker": 0.15, "code2wav": 0.05}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return all three stages, or the thinker if the checkpoint has no talker, with transformers' sampling."""
    config = read_config(folder)
    is_cpu = machine.device == "cpu"
    speaks = bool(config.get("enable_audio_output", True))
    decoders = {"thinker": config["thinker_config"]["text_config"]}
    if speaks:
        decoders["talker"] = config["talker_config"]["text_config"]
    # Half of a host's memory in equal parts, because each stage is a process, and other programs run beside them.
    room_bytes = (machine.memory_bytes // 2 - weights_bytes(folder)) // len(decoders)

    def common(name: str) -> dict[str, Any]:
        share = _SHARES[name] if speaks else 0.9
        return decoder_settings(decoders[name], read_dtype(folder), machine, room_bytes=room_bytes, share=share)

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
            **({} if is_cpu else {"gpu_memory_utilization": _SHARES["code2wav"]}),
            "execution": "eager" if is_cpu else "cudagraph",
            "output_copy": "async",
        },
    }
