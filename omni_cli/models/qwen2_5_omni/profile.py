"""The default profile of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.families import Machine

# From the model card: speech is correct only with exactly this system prompt.
_SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
_MAX_MODEL_LEN = {"cpu": 4096, "cuda": 32768}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 32}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return the three stages with the released models' sampling."""
    config = read_config(folder)
    is_cpu = machine.device == "cpu"
    decoders = {"thinker": config["thinker_config"]["text_config"], "talker": config["talker_config"]}

    def common(name: str) -> dict[str, Any]:
        return decoder_settings(decoders[name], machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS)

    return {
        "thinker": {
            "kind": "ar",
            "backend": "vllm",
            **common("thinker"),
            "system_prompt": _SYSTEM_PROMPT,
            "sampling": {"temperature": 0.0, "max_tokens": 1024},
        },
        "talker": {
            "kind": "ar",
            "backend": "vllm",
            "input": "thinker",
            **common("talker"),
            # Qwen2.5-Omni's own values, because greedy speech gets stuck.
            "sampling": {
                "temperature": 0.9,
                "top_k": 40,
                "top_p": 0.8,
                "repetition_penalty": 1.05,
                "max_tokens": 4096 if not is_cpu else 1024,
            },
        },
        "token2wav": {
            "kind": "diffusion",
            "backend": "vllm",
            "input": "talker",
            "max_num_seqs": 8,
            "num_inference_steps": 10,
            "guidance_scale": 0.5,
            "sway_coefficient": -1.0,
            "execution": "eager" if is_cpu else "cudagraph",
            "output_copy": "sync",
        },
    }
