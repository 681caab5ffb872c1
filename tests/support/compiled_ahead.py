"""Compiles token2wav's fused activations for a GPU that is not there: how many kernels ahead, and after each call.

A process of its own, because Triton has one driver; launches compile and run nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavBigVGANModel
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from omni_cli.models.qwen2_5_omni.token2wav.cuda import vocoder_kernels
from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder import PackedBigVGAN
from support.plain_activation import plain_mean


class H200Driver:
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def answer() -> dict[str, object]:
    driver.set_active(H200Driver())
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, warmup: bool, **keys: Any) -> Any:
        return run(self, *args, warmup=True, **keys)

    JITFunction.run = compile_only
    config = Qwen2_5OmniBigVGANConfig(
        upsample_initial_channel=160, upsample_rates=[5, 3], upsample_kernel_sizes=[11, 7]
    )
    packed: Any = PackedBigVGAN(
        Qwen2_5OmniToken2WavBigVGANModel(config).eval(), vocoder_kernels.FusedActivation, plain_mean
    )
    with torch.inference_mode():
        vocoder_kernels.compile_ahead(packed.activations())
        counts = [_num_compiled()]
        for num_frames in (9, 48, 999, 24003):
            bounds = torch.zeros(2, num_frames, dtype=torch.int32)
            packed(torch.zeros(num_frames, config.mel_dim), bounds)
            counts.append(_num_compiled())
    return {"ahead": counts[0], "in calls": counts[1:]}


def _num_compiled() -> int:
    kernels, *_ = vocoder_kernels._activate.device_caches[0]
    return len(kernels)
