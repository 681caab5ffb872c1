"""CSM's Mimi as a vLLM diffusion model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import MimiModel

from omni_cli.models.codec.decoder_model import CodecForDiffusion


class CsmCodec(CodecForDiffusion):
    """Loads the weights called `codec_model.`, except the encoder's."""

    weights_prefix = "codec_model."

    def make_codec(self, config: Any) -> nn.Module:
        mimi = config.codec_config
        self.sample_rate, self.codebook_size = mimi.sampling_rate, mimi.codebook_size
        self.num_codebooks = config.num_codebooks
        codec: nn.Module = MimiModel._from_config(mimi, dtype=torch.get_default_dtype())
        codec.encoder = codec.encoder_transformer = codec.downsample = None
        return codec
