"""Sizes of a CSM checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_cli.checkpoints.sizes import DecoderSizes


@dataclass(frozen=True)
class MimiSizes:
    """Mimi. A frame is 1,920 samples, as in the release, for all sizes."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_filters: int
    codebook_dim: int
    sliding_window: int


@dataclass(frozen=True)
class CsmSizes:
    """Sizes of a whole CSM. The defaults are those of `tiny-csm`.

    `codebook_size` is a power of two; each codebook's vocabulary has three more ids.
    """

    text_vocab_size: int = 512
    codebook_size: int = 64
    num_codebooks: int = 8
    max_position_embeddings: int = 2048
    backbone: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    depth: DecoderSizes = field(default_factory=lambda: DecoderSizes(64, 128, 2, 2, 1, 32))
    codec: MimiSizes = field(default_factory=lambda: MimiSizes(64, 128, 2, 4, 4, 32, 25))


TINY = CsmSizes()
