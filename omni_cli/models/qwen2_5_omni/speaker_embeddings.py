"""Run the speaker encoder of token2wav's DiT once per speaker instead of once per call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class SpeakerEmbeddings:
    """Makes a DiT's speaker encoder run once per speaker, outside of its forward.

    The encoder only reads the reference mel spectrogram, which is the same in all calls and requests of a speaker. Its
    embedding is made before the forward and passed as one more tensor: a CUDA graph of the forward copies it in like
    any other input, and so serves every speaker. Methods are replaced rather than modules, whose weights keep their
    names.
    """

    def __init__(self, dit: nn.Module) -> None:
        self.speaker = ""
        encoder = dit.input_embed.spk_encoder
        self._encode = encoder.forward
        self._forward = dit.forward
        self._embedding: torch.Tensor | None = None
        self._embeddings: dict[tuple[str, torch.Size, bool, bool], torch.Tensor] = {}
        encoder.forward = self._given
        dit.forward = self._forward_with_embedding
        dit.register_forward_pre_hook(self._add_embedding, with_kwargs=True)

    def _add_embedding(self, _: nn.Module, args: tuple[()], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        mel = kwargs["condition_vector"]
        guided, dropped = kwargs.get("apply_cfg", True), kwargs.get("drop_audio_conditioning", False)
        key = (self.speaker, mel.shape, guided, dropped)
        if key not in self._embeddings:
            # As the DiT would pass to its encoder: with guidance the batch has an unconditioned half.
            empty = torch.zeros_like(mel)
            whole = torch.cat([mel, empty]) if guided else (empty if dropped else mel)
            self._embeddings[key] = self._encode(whole)
        return args, {**kwargs, "speaker_encoding": self._embeddings[key]}

    def _forward_with_embedding(self, *, speaker_encoding: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self._embedding = speaker_encoding
        return self._forward(**kwargs)

    def _given(self, mel: torch.Tensor) -> torch.Tensor:
        """Replacement of the encoder: `mel` (batch, num_frames, mel_dim) -> (batch, enc_dim)."""
        assert self._embedding is not None
        return self._embedding
