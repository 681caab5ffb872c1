"""token2wav with `batching: padded` on a CUDA device: Triton kernels, and large batches."""

from __future__ import annotations

import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.token2wav.cuda import dit_kernels
from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder import PackedVocoder
from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder_kernels import FusedActivation, compile_ahead, fused_mean
from omni_cli.models.qwen2_5_omni.token2wav.platform import Platform

# 16 requests of 5 s of audio, with guidance. More at once are no faster, all end later and take more memory: of 32
# requests of 4 s half ended by 0.96 of 1.72 s on an H200, and all at 1.83 s as one batch.
MAX_BLOCKS = 640


class CudaPlatform(Platform):
    """One Triton kernel for each of torch's groups of operations, and a vocoder that runs several requests in a call.

    CUDA graphs are the stage's `execution: cudagraph`; see `Synthesizer`.
    """

    runs_together = True

    def get_max_blocks(self, num_blocks: int) -> int:
        return min(num_blocks, MAX_BLOCKS)

    attend = staticmethod(dit_kernels.attend)
    add_and_norm = staticmethod(dit_kernels.add_and_norm)
    advance = staticmethod(dit_kernels.advance)

    def make_linear(self, linear: nn.Linear, gelu: nn.GELU | None = None) -> nn.Module:
        return linear if gelu is None else GeluLinear(linear)

    def make_vocoder(self, vocoder: nn.Module) -> PackedVocoder:
        return PackedVocoder(vocoder, FusedActivation, fused_mean, compile_ahead)


class GeluLinear(nn.Linear):
    """Replaces `linear` and the GELU, approximated by tanh, after it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) of `inputs` (..., in_features)."""
        rows = inputs.flatten(0, -2).to(self.weight.dtype)
        if dit_kernels.fits(rows, self.weight):
            outputs = dit_kernels.linear_gelu(rows, self.weight, self.bias)
        else:
            outputs = torch._addmm_activation(self.bias, rows, self.weight.mT, use_gelu=True)
        return outputs.view(*inputs.shape[:-1], -1)
