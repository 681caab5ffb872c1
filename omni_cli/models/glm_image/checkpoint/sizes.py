"""Sizes of a GLM-Image pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_cli.checkpoints.sizes import DecoderSizes


@dataclass(frozen=True)
class GlmImageSizes:
    """A GLM-Image pipeline. The defaults are `tiny-glm-image`'s; the ids of image tokens are the released model's.

    `num_text_tokens` is the size of the vocabulary for text, which follows the `vision_vocab_size` ids for images.
    `min_pixels` and `max_pixels` bound the area that condition images are scaled to, before they become tokens.
    """

    num_text_tokens: int = 768
    num_image_tokens: int = 16384
    vision_vocab_size: int = 16512
    decoder: DecoderSizes = field(default_factory=lambda: DecoderSizes(64, 128, 2, 2, 1, 32))
    vision_hidden_size: int = 64
    patch_size: int = 16
    min_pixels: int = 64 * 64
    max_pixels: int = 2048 * 2048
    glyph_size: int = 64
    vae_width: int = 16

    @property
    def image_start_token_id(self) -> int:
        return self.num_image_tokens

    @property
    def image_end_token_id(self) -> int:
        return self.num_image_tokens + 1
