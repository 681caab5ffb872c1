"""The default profile of a GLM-Image checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.checkpoints.files import read_object
from omni_cli.families import Machine

_MAX_MODEL_LEN = {"cpu": 8192, "cuda": 16384}
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 16}
# transformers' default.
_TOP_K = 50


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return both stages, with the checkpoint's sampling; sizes and steps are the pipeline's defaults."""
    prior = folder / "vision_language_encoder"
    is_cpu = machine.device == "cpu"
    decoder = read_config(prior)["text_config"]
    return {
        "prior": {
            "kind": "ar",
            "backend": "vllm",
            **decoder_settings(decoder, machine, max_model_len=_MAX_MODEL_LEN, max_num_seqs=_MAX_NUM_SEQS),
            "sampling": _sampling(prior / "generation_config.json"),
        },
        "decoder": {
            "kind": "diffusion",
            "backend": "diffusers",
            "input": "prior",
            "max_num_seqs": 1 if is_cpu else 4,
            "execution": "eager",
            "output_copy": "async",
        },
    }


def _sampling(file: Path) -> dict[str, Any]:
    """Return the sampling of `GlmImagePipeline`, which is never greedy, by vLLM's names."""
    config = read_object(file) if file.is_file() else {}
    named = {name: config[name] for name in ("temperature", "top_p") if config.get(name) is not None}
    top_k = config.get("top_k")
    return {"temperature": 1.0, **named, "top_k": _TOP_K if top_k is None else top_k}
