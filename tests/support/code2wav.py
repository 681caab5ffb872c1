"""Qwen3-Omni's code2wav and Qwen3-TTS's decoder with random weights, and both ways to run their convolutions."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeCode2Wav
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

from omni_cli.core.compat import replace_attributes
from omni_cli.models.codec.row_decoder import RowDecoder
from omni_cli.models.codec.streaming import StreamingCodecDecoder
from omni_cli.models.qwen3_tts.modules import SpeechDecoder

KINDS = {"code2wav": Qwen3OmniMoeCode2Wav, "speech decoder": SpeechDecoder}


def code2wav(kind: str, **sizes: Any) -> nn.Module:
    """Return a module of `KINDS` whose samples are far from zero and rarely clipped."""
    torch.manual_seed(0)
    module = KINDS[kind]._from_config(Qwen3OmniMoeCode2WavConfig(**sizes)).eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.7 / weight[0].numel() ** 0.5)
            else:
                weight.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.1)
    return module


def decoders(module: nn.Module) -> tuple[StreamingCodecDecoder, StreamingCodecDecoder]:
    """Return decoders of `module`, which is changed, with a kernel for each convolution, and of a copy as it was."""
    plain = StreamingCodecDecoder(copy.deepcopy(module))
    fused = StreamingCodecDecoder(module)
    with replace_attributes(RowDecoder, suits=lambda _: True):
        fused.call.use_kernels()
    return fused, plain
