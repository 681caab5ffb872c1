"""The default profile of a diffusers pipeline."""

from __future__ import annotations

from pathlib import Path

from omni_cli.families import Machine


def image_stages(folder: Path, machine: Machine) -> dict[str, object]:
    """One stage; steps, sizes and guidance are the pipeline's own defaults."""
    return _stages("image", machine)


def audio_stages(folder: Path, machine: Machine) -> dict[str, object]:
    """One stage; steps, length and guidance are the pipeline's own defaults."""
    return _stages("audio", machine)


def _stages(name: str, machine: Machine) -> dict[str, object]:
    return {
        name: {
            "kind": "diffusion",
            "backend": "diffusers",
            "max_num_seqs": 1 if machine.device == "cpu" else 4,
            "execution": "eager",
            "output_copy": "async",
        }
    }
