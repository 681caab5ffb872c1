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
    def config(self) -> dict[str, object]:
        """The keys of a transformers configuration for these sizes."""
        return dict(vars(self))

    @property
    def config_of_whole_heads(self) -> dict[str, object]:
        """The keys of a configuration without `head_dim`, whose heads share `hidden_size` evenly."""
        return {name: size for name, size in vars(self).items() if name != "head_dim"}

    @property
    def mrope_section(self) -> list[int]:
        """Rotary pairs for time, height and width, in Qwen's proportions 2 : 3 : 3."""
        return [self.head_dim // 8, self.head_dim * 3 // 16, self.head_dim * 3 // 16]


@dataclass(frozen=True)
class EncoderSizes:
    """The audio or the vision encoder in front of a thinker."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int

    def audio_config(self, output_dim: int) -> dict[str, object]:
        """Return the keys of an audio encoder's configuration, by transformers' names."""
        return {
            "d_model": self.hidden_size,
            "encoder_ffn_dim": self.intermediate_size,
            "encoder_layers": self.num_hidden_layers,
            "encoder_attention_heads": self.num_attention_heads,
            "num_mel_bins": 128,
            "output_dim": output_dim,
        }

    def vision_config(self, output_dim: int) -> dict[str, object]:
        """Return the keys of a vision encoder's configuration, by transformers' names."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "depth": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
            "out_hidden_size": output_dim,
        }
