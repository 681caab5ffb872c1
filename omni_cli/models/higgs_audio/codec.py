"""Higgs Audio v2's tokenizer as a vLLM diffusion model: samples from frames of codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from omni_cli.checkpoints.files import weight_files
from omni_cli.models.codec.decoder_model import CodecForDiffusion
from omni_cli.models.codec.lookahead import LookaheadDecoder
from omni_cli.models.higgs_audio.tokenizer import tokenizer_class, tokenizer_folder


class HiggsCodec(CodecForDiffusion):
    """Loads the decoder from the checkpoint's other folder; its convolutions look ahead."""

    weights_prefix = ""
    looks_ahead = True

    def make_codec(self, config: Any) -> nn.Module:
        kind = tokenizer_class()
        self._codec_folder = tokenizer_folder(self._model)
        own = kind.config_class.from_pretrained(self._codec_folder)
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
        own = (load_file(file).items() for file in weight_files(self._codec_folder))
        return super().load_weights(item for items in own for item in items)
