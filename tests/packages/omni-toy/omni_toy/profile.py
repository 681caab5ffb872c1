"""The default profile, for checkpoints of any size."""

from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import decoder_settings, read_config
from omni_cli.config.families import Machine


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """A writer and a painter; the size of the writer's KV cache is planned when it starts."""
    lengths, requests = {"cpu": 4096, "cuda": 4096}, {"cpu": 8, "cuda": 32}
    settings = decoder_settings(read_config(folder), machine, max_model_len=lengths, max_num_seqs=requests)
    return {
        "writer": {**settings, "sampling": {"temperature": 0.0, "max_tokens": 64}},
        "painter": {"num_inference_steps": 4},
    }
