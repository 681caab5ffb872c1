"""Qwen3-ASR as a vLLM model whose short sounds do not depend on the sounds beside them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_asr import Qwen3ASRForConditionalGeneration


class Qwen3ASR(Qwen3ASRForConditionalGeneration):
    """vLLM's model, with the windows of its encoder filled up as transformers fills them.

    vLLM fills a window up to the longest one beside it. If all sounds are shorter than a window, of a second, the
    convolutions see a shorter one than transformers', and one that depends on the batch.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        encoder = self.audio_tower
        fill_windows(encoder.conv2d1, encoder.conv2d3, 2 * encoder.n_window)


def fill_windows(first: nn.Module, last: nn.Module, num_frames: int) -> None:
    """Pad the windows of convolutions that halve three times to `num_frames`, and cut off the padding's outputs."""
    num_given = num_frames

    def fill(_: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        nonlocal num_given
        (windows,) = args  # (windows, 1, mel bins, frames)
        num_given = windows.shape[-1]
        return (functional.pad(windows, (0, num_frames - num_given)),)

    def cut(_: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return output[..., : -(-num_given // 8)]

    first.register_forward_pre_hook(fill)
    last.register_forward_hook(cut)
