"""The default profile of a diffusers pipeline."""

from __future__ import annotations

from pathlib import Path

from omni_cli.families import Machine


def stages(folder: Path, machine: Machine) -> dict[str, object]:
    """One stage, named after what it makes; steps, sizes, length and guidance are the pipeline's own defaults."""
    return {
        "image": {
            "kind": "diffusion",
            "backend": "diffusers",
            "max_num_seqs": 1 if machine.device == "cpu" else 4,
            "output_copy": "async",
        }
    }
