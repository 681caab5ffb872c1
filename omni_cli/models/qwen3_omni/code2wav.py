"""Qwen3-Omni's code2wav as a vLLM diffusion model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeCode2Wav

from omni_cli.models.codec.decoder_model import CodecForDiffusion


class Qwen3OmniMoeCode2WavForDiffusion(CodecForDiffusion):
    """Loads the weights called `code2wav.` of a Qwen3-Omni checkpoint."""

    weights_prefix = "code2wav."
    sample_rate = 24_000

    def make_codec(self, config: Any) -> nn.Module:
        code2wav = config.code2wav_config
        self.codebook_size, self.num_codebooks = code2wav.codebook_size, code2wav.num_quantizers
        codec: nn.Module = Qwen3OmniMoeCode2Wav._from_config(code2wav, dtype=torch.get_default_dtype())
        return codec
