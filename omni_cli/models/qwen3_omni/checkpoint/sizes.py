"""Sizes of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_cli.checkpoints.sizes import DecoderSizes, EncoderSizes
from omni_cli.errors import UsageError

# The reference suppresses this many ids at the end of the talker's vocabulary, of any size.
NUM_SUPPRESSED_IDS = 1024


@dataclass(frozen=True)
class ExpertSizes:
    """The mixture of experts in a decoder's layers; `shared_size` is the width of the expert for all tokens."""

    num_experts: int
    num_per_token: int
    size: int
    shared_size: int = 0


@dataclass(frozen=True)
class CodecSizes:
    """code2wav: a transformer over frames, and convolutions from a frame to 1,920 samples.

    The convolutions halve `decoder_dim` four times, so it must be a multiple of 16.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    decoder_dim: int
    sliding_window: int = 72

    def __post_init__(self) -> None:
        if self.decoder_dim % 16:
            raise UsageError("decoder_dim must be a multiple of 16")


@dataclass(frozen=True)
class Qwen3OmniSizes:
    """Sizes of a whole Qwen3-Omni. The defaults are those of `tiny-qwen3-omni`.

    `vocab_size` counts text tokens, including special ones; `num_codes` the codes of each of `num_code_groups`
    codebooks. The talker's rows of images, video and audio are from layer `accept_hidden_layer` of the thinker, which
    comes after the layers into which the image encoder's `deepstack` layers are fed.
    """

    vocab_size: int = 512
    num_codes: int = 128
    num_code_groups: int = 8
    max_position_embeddings: int = 4096
    accept_hidden_layer: int = 3
    deepstack: tuple[int, ...] = (0, 1)
    thinker: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 4, 4, 2, 32))
    thinker_experts: ExpertSizes = field(default_factory=lambda: ExpertSizes(4, 2, 64))
    talker: DecoderSizes = field(default_factory=lambda: DecoderSizes(96, 128, 2, 4, 2, 32))
    talker_experts: ExpertSizes = field(default_factory=lambda: ExpertSizes(4, 2, 48, shared_size=64))
    code_predictor: DecoderSizes = field(default_factory=lambda: DecoderSizes(96, 128, 2, 4, 2, 32))
    audio: EncoderSizes = field(default_factory=lambda: EncoderSizes(64, 128, 2, 2))
    vision: EncoderSizes = field(default_factory=lambda: EncoderSizes(64, 128, 3, 2))
    code2wav: CodecSizes = field(default_factory=lambda: CodecSizes(64, 128, 2, 2, 64))

    def __post_init__(self) -> None:
        if self.code_predictor.hidden_size != self.talker.hidden_size:
            raise UsageError("the code predictor's hidden_size must be the talker's")
        if not len(self.deepstack) < self.accept_hidden_layer <= self.thinker.num_hidden_layers:
            raise UsageError("accept_hidden_layer must come after the layers that deepstack feeds")


TINY = Qwen3OmniSizes()
