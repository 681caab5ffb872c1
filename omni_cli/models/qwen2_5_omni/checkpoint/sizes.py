"""Sizes of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_cli.checkpoints.sizes import DecoderSizes, EncoderSizes
from omni_cli.errors import UsageError


@dataclass(frozen=True)
class VocoderSizes:
    """token2wav: a diffusion transformer from codes to mel frames, and BigVGAN from mel frames to samples.

    BigVGAN halves `upsample_initial_channel` six times, so it must be a multiple of 64.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    speaker_dim: int
    upsample_initial_channel: int

    def __post_init__(self) -> None:
        if self.upsample_initial_channel % 64:
            raise UsageError("upsample_initial_channel must be a multiple of 64")


@dataclass(frozen=True)
class OmniSizes:
    """Sizes of a whole Qwen2.5-Omni. The defaults are those of `tiny-omni`.

    `vocab_size` counts text tokens, including special ones; `num_codes` the audio codes, to which the talker's
    vocabulary adds a few special ones.
    """

    vocab_size: int = 512
    num_codes: int = 256
    max_position_embeddings: int = 4096
    thinker: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    talker: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    audio: EncoderSizes = field(default_factory=lambda: EncoderSizes(64, 128, 2, 2))
    vision: EncoderSizes = field(default_factory=lambda: EncoderSizes(64, 128, 2, 2))
    token2wav: VocoderSizes = field(default_factory=lambda: VocoderSizes(64, 2, 2, 32, 32, 64))

    def __post_init__(self) -> None:
        # The thinker's configuration has no head_dim; the talker's has.
        if self.thinker.num_attention_heads * self.thinker.head_dim != self.thinker.hidden_size:
            raise UsageError("the thinker's hidden_size must be num_attention_heads * head_dim")


TINY = OmniSizes()
SMALL = OmniSizes(
    vocab_size=8192,
    num_codes=1024,
    thinker=DecoderSizes(640, 2560, 8, 10, 2, 64),
    talker=DecoderSizes(512, 2048, 6, 8, 2, 64),
    audio=EncoderSizes(256, 1024, 3, 4),
    vision=EncoderSizes(256, 512, 4, 4),
    token2wav=VocoderSizes(256, 6, 4, 64, 64, 256),
)
