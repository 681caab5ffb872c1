"""Higgs Audio v2's tokenizer as a vLLM diffusion model: samples from frames of codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from omni_cli.models.codec.decoder_model import CodecForDiffusion
from omni_cli.models.codec.lookahead import LookaheadDecoder
from omni_cli.models.higgs_audio.tokenizer import load_tokenizer, tokenizer_class, tokenizer_folder


class HiggsCodec(CodecForDiffusion):
    """Loads the decoder from the checkpoint's other folder; its convolutions look ahead."""

    weights_prefix = ""
    looks_ahead = True

    def make_codec(self, config: Any) -> nn.Module:
        kind = tokenizer_class()
        folder = tokenizer_folder(self._model)
        # Read only to see whether a weight is missing or not a number.
        self.secondary_weights = (DefaultModelLoader.Source(str(folder), revision=None, prefix="codec."),)
        own = kind.config_class.from_pretrained(folder)
        self.sample_rate, self.codebook_size, self.num_codebooks = (
            own.sample_rate,
            own.codebook_size,
            own.num_quantizers,
        )
        codec: nn.Module = kind._from_config(own, dtype=torch.get_default_dtype())
        codec.acoustic_encoder = codec.encoder_semantic = codec.semantic_model = codec.decoder_semantic = None
        return codec

    def make_decoder(self, codec: nn.Module) -> LookaheadDecoder:
        return LookaheadDecoder(
            codec.acoustic_decoder, lambda codes: codec.decode(codes).audio_values[:, 0], codec.config.hop_length
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the codec's own weights instead of those of the language model, which are not read."""
        whole = load_tokenizer(self._model, next(self.codec.parameters()).dtype)
        self.codec.load_state_dict(whole.state_dict(), strict=False)
        return {f"codec.{name}" for name, _ in self.codec.named_parameters()}
