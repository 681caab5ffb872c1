"""Sizes of the parts that checkpoints of several families have."""

from __future__ import annotations

from dataclasses import dataclass

from omni_cli.errors import UsageError


@dataclass(frozen=True)
class DecoderSizes:
    """A Qwen2 decoder.

    vLLM's CPU attention supports head sizes of 32, 64, 128 and a few more, not 16.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.head_dim % 16:
            raise UsageError(f"head_dim {self.head_dim} must be a multiple of 16")

    @property
    def mrope_section(self) -> list[int]:
        """Rotary pairs for time, height and width, in Qwen's own proportions 2 : 3 : 3."""
        return [self.head_dim // 8, self.head_dim * 3 // 16, self.head_dim * 3 // 16]


@dataclass(frozen=True)
class EncoderSizes:
    """The audio or the vision encoder in front of a thinker."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
