"""Small random-weight checkpoints of the real architectures, written as complete folders, nothing downloaded.

Importing this package imports neither torch nor transformers; building does.
"""

from __future__ import annotations

from pathlib import Path

from omni_cli.checkpoints.sizes import BUILTIN_SIZES, DecoderSizes, ImageSizes, OmniSizes, VocoderSizes

BUILTIN_NAMES = tuple(BUILTIN_SIZES)

__all__ = [
    "BUILTIN_NAMES",
    "BUILTIN_SIZES",
    "DecoderSizes",
    "ImageSizes",
    "OmniSizes",
    "VocoderSizes",
    "build_checkpoint",
    "build_image",
    "build_omni",
]


def build_checkpoint(name: str, output_dir: Path, seed: int = 0) -> None:
    """Write the built-in checkpoint `name` into `output_dir`, which is created if necessary.

    The same name and seed give the same bytes in every file. Raises `KeyError` for an unknown name.
    """
    sizes = BUILTIN_SIZES[name]
    if isinstance(sizes, OmniSizes):
        build_omni(output_dir, sizes, seed)
    else:
        build_image(output_dir, sizes, seed)


def build_omni(output_dir: Path, sizes: OmniSizes, seed: int = 0) -> None:
    """Write a Qwen2.5-Omni (thinker, talker, token2wav) of these sizes into `output_dir`."""
    from omni_cli.models.qwen2_5_omni.builder import write_omni

    write_omni(output_dir, sizes, seed)


def build_image(output_dir: Path, sizes: ImageSizes, seed: int = 0) -> None:
    """Write a Qwen-Image pipeline of these sizes into `output_dir`."""
    from omni_cli.models.diffusers_pipeline.builder import write_image

    write_image(output_dir, sizes, seed)
