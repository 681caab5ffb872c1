"""The kit's command for each bundled profile that needs a GPU.

    PYTHONPATH=. python benchmarks/gpu/commands.py

Prints them. Chains run the profile itself; a pipeline's transformer and autoencoder run with its published sizes.
"""

from __future__ import annotations

import shlex
import sys

_CHAIN = "chain.py {} -o results --model folder"
_PIPELINE = "diffusion_modes.py -o results --kinds --only {}"

COMMANDS = {
    "qwen2.5-omni-7b": _CHAIN.format("qwen2.5-omni"),
    "qwen2.5-omni-3b": _CHAIN.format("qwen2.5-omni-3b"),
    "qwen3-omni-30b-a3b": "chain.py qwen3-omni -o results",
    "vibevoice-1.5b": "vibevoice.py -o results",
    "qwen3-tts-1.7b": "qwen3_tts.py -o results",
    "qwen-image": "diffusion_modes.py -o results --only qwen-image",
    "qwen-image-edit": _PIPELINE.format("qwen-image-edit"),
    "flux.2-klein": _PIPELINE.format("flux.2-klein"),
    "z-image-turbo": _PIPELINE.format("z-image"),
    "wan2.2-t2v": _PIPELINE.format("wan2.2-t2v-a14b"),
    "wan2.2-i2v": _PIPELINE.format("wan2.2-i2v-a14b"),
    "ltx-2": _PIPELINE.format("ltx-2"),
    "glm-image": _PIPELINE.format("glm-image"),  # its decoder, with random tokens of its prior
    "stable-audio": _PIPELINE.format("stable-audio"),
}
# Prepared first: the folders of the chains with `--model`.
FOLDERS = {
    "qwen2.5-omni-7b": "omni_checkpoint.py folder --size 7b",
    "qwen2.5-omni-3b": "omni_checkpoint.py folder --size 3b",
}


def arguments(command: str) -> tuple[str, list[str]]:
    """The script and its arguments."""
    script, *rest = shlex.split(command)
    return script, rest


def main() -> None:
    for profile, command in COMMANDS.items():
        lines = [FOLDERS[profile], command] if profile in FOLDERS else [command]
        sys.stdout.write(f"{profile}\n" + "".join(f"  python benchmarks/gpu/{line}\n" for line in lines))


if __name__ == "__main__":
    main()
