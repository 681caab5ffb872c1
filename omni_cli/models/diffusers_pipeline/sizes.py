"""Sizes of a Qwen-Image pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_cli.checkpoints.sizes import DecoderSizes


@dataclass(frozen=True)
class ImageSizes:
    """A Qwen-Image pipeline. The defaults are `tiny-image`'s.

    `head_dim` is split over the image's three axes by the rotary embedding and must be a multiple of 16.
    """

    vocab_size: int = 1024
    text_encoder: DecoderSizes = field(default_factory=lambda: DecoderSizes(64, 128, 2, 2, 1, 32))
    num_layers: int = 2
    num_attention_heads: int = 2
    head_dim: int = 32
    vae_base_dim: int = 16
