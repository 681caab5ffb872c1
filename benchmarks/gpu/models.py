"""Released architectures with random weights, made on the device: nothing is downloaded, nothing written to disk.

Sizes are those of the published configurations: SANA 1.6B and 0.6B at 512 px (diffusers' own conversion script, with
the DC-AE of SANA), Qwen-Image (diffusers' defaults are its configuration), Qwen2.5-Omni-7B's token2wav (transformers'
defaults). `tiny` makes the same classes small enough for a CPU.

There are no text encoders: they run once per image and before what is measured here. Random embeddings of the right
shape replace their output.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

_SANA_1600M = {
    "num_attention_heads": 70, "attention_head_dim": 32, "num_layers": 20, "num_cross_attention_heads": 20,
    "cross_attention_head_dim": 112, "cross_attention_dim": 2240, "caption_channels": 2304, "sample_size": 16,
}  # fmt: skip
_SANA_600M = {
    "num_attention_heads": 36, "attention_head_dim": 32, "num_layers": 28, "num_cross_attention_heads": 16,
    "cross_attention_head_dim": 72, "cross_attention_dim": 1152, "caption_channels": 2304, "sample_size": 16,
}  # fmt: skip
_SANA_TINY = {
    "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8, "cross_attention_dim": 16, "caption_channels": 32, "sample_size": 16,
}  # fmt: skip
_SANA_TOKENS = 300

_DC_AE = {
    "latent_channels": 32,
    "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "encoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "decoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "encoder_layers_per_block": (2, 2, 2, 3, 3, 3),
    "decoder_layers_per_block": (3, 3, 3, 3, 3, 3),
    "encoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "decoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "downsample_block_type": "conv",
    "upsample_block_type": "interpolate",
    "decoder_norm_types": "rms_norm",
    "decoder_act_fns": "silu",
    "scaling_factor": 0.41407,
}
_DC_AE_TINY = {
    **_DC_AE,
    "attention_head_dim": 8,
    "encoder_block_out_channels": (16, 16, 16, 32, 32, 32),
    "decoder_block_out_channels": (16, 16, 16, 32, 32, 32),
    "encoder_layers_per_block": (1,) * 6,
    "decoder_layers_per_block": (1,) * 6,
}

_QWEN_IMAGE_TINY = {
    "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "joint_attention_dim": 32,
    "axes_dims_rope": (2, 6, 8),
}  # fmt: skip
_QWEN_IMAGE = {"num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 3584}
_QWEN_SCHEDULER = {
    "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192, "max_shift": 0.9, "shift": 1.0,
    "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": True,
}  # fmt: skip

_TOKEN2WAV_TINY = {
    "dit_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16, "emb_dim": 16,
        "look_ahead_layers": [1], "look_backward_layers": [0], "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 8, "enc_se_channels": 8, "enc_dim": 16, "enc_emb_dim": 16,
    },
    "bigvgan_config": {"upsample_initial_channel": 64},
}  # fmt: skip


@dataclass(frozen=True)
class PipelineModel:
    """A pipeline and the measured call: `size` pixels each way or `size` by `width`, `num_inference_steps` steps.

    Without a size it makes sound, with `num_frames` a video of so many, and with `edits` it gets an image of its size.
    `blocks` is the number of blocks: more where the host is the bottleneck, whose times vary more than a device's.
    """

    name: str
    describes: str
    make: Callable[[torch.device], Any]
    size: int | None
    num_inference_steps: int
    blocks: int
    dtype: str = "bfloat16"
    width: int | None = None
    num_frames: int | None = None
    edits: bool = False
    call: dict[str, Any] = field(default_factory=dict)

    @property
    def makes(self) -> str:
        if self.size is None:
            return "sound"
        return "image" if self.num_frames is None else "video"

    @property
    def shape(self) -> dict[str, int]:
        """The arguments of the call for the size of its output."""
        if self.size is None:
            return {}
        frames = {} if self.num_frames is None else {"num_frames": self.num_frames}
        return {"height": self.size, "width": self.width or self.size, **frames}

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The arguments of the call for its input."""
        if self.size is None or not self.edits:
            return {}
        return {"image": Image.linear_gradient("L").convert("RGB").resize((self.width or self.size, self.size))}


@dataclass(frozen=True)
class Token2WavModel:
    """Qwen2.5-Omni's token2wav and the measured call; a second of audio has 50 codes."""

    name: str
    describes: str
    make: Callable[[torch.device], Any]
    num_codes: int
    num_inference_steps: int
    blocks: int
    dtype: str = "float32"


Model = PipelineModel | Token2WavModel


# A cache has nothing to take from in a few steps.
_MIN_STEPS = {"video": 6, "image": 8, "sound": 8}


def longer(model: PipelineModel) -> PipelineModel:
    """The same model with steps enough for accelerations that take from one step to the next."""
    return replace(model, num_inference_steps=max(model.num_inference_steps, _MIN_STEPS[model.makes]))


def models(*, tiny: bool) -> dict[str, Model]:
    """All measurable models, by name."""
    size, large, codes, steps = (64, 64, 24, 3) if tiny else (512, 1024, 300, 20)
    sana, sana_small = (_SANA_TINY, _SANA_TINY) if tiny else (_SANA_1600M, _SANA_600M)
    found: list[Model] = [
        PipelineModel(
            "sana-0.6b", "SANA 0.6B, guided (two rows per step)",
            lambda device: make_sana(device, sana_small, _DC_AE_TINY if tiny else _DC_AE), size, steps, 16,
            call={"use_resolution_binning": False},
        ),
        PipelineModel(
            "sana-1.6b", "SANA 1.6B, guided (two rows per step)",
            lambda device: make_sana(device, sana, _DC_AE_TINY if tiny else _DC_AE), size, steps, 16,
            call={"use_resolution_binning": False},
        ),
        Token2WavModel(
            "token2wav", "Qwen2.5-Omni-7B's token2wav, guided", lambda device: make_token2wav(device, tiny=tiny),
            codes, 3 if tiny else 10, 8,
        ),
        PipelineModel(
            "qwen-image", "Qwen-Image, 20B, no guidance", lambda device: make_qwen_image(device, tiny=tiny),
            large, 4, 8,
        ),
    ]  # fmt: skip
    return {model.name: model for model in found}


def make_sana(device: torch.device, sizes: dict[str, Any], vae: dict[str, Any]) -> Any:
    """A `SanaPipeline` in bfloat16."""
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel

    class RandomPromptSana(SanaPipeline):
        def encode_prompt(self, prompt, do_classifier_free_guidance=True, **_: Any):
            return (*self.random_prompt, *self.random_prompt)

    scheduler = DPMSolverMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction")
    with drawn_on(device, torch.bfloat16):
        pipeline = RandomPromptSana(
            tokenizer=None,
            text_encoder=None,
            vae=AutoencoderDC(**vae).eval(),
            transformer=SanaTransformer2DModel(**sizes).eval(),
            scheduler=scheduler,
        )
        embeddings = torch.randn(1, _SANA_TOKENS, sizes["caption_channels"])
        mask = torch.ones(1, _SANA_TOKENS, dtype=torch.int64)
    RandomPromptSana.random_prompt = (embeddings, mask)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def make_qwen_image(device: torch.device, *, tiny: bool, sizes: Mapping[str, int] | None = None) -> Any:
    """A `QwenImagePipeline` in bfloat16: 40 GB of weights at its real size, or of other `sizes`."""
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from diffusers.utils import logging

    class RandomPromptQwenImage(QwenImagePipeline):
        def encode_prompt(self, prompt, **_: Any):
            # No mask: the pipeline also drops that of a prompt without padding.
            return self.random_prompt, None

    # diffusers warns at every call about a default that has no effect without a negative prompt.
    logging.set_verbosity_error()
    config = {**(_QWEN_IMAGE_TINY if tiny else _QWEN_IMAGE), **(sizes or {})}
    scheduler = FlowMatchEulerDiscreteScheduler(**_QWEN_SCHEDULER)
    with drawn_on(device, torch.bfloat16):
        pipeline = RandomPromptQwenImage(
            tokenizer=None,
            text_encoder=None,
            vae=AutoencoderKLQwenImage(**({"base_dim": 16, "num_res_blocks": 1} if tiny else {})).eval(),
            transformer=QwenImageTransformer2DModel(**config).eval(),
            scheduler=scheduler,
        )
        RandomPromptQwenImage.random_prompt = torch.randn(1, 64, config["joint_attention_dim"])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def make_token2wav(device: torch.device, *, tiny: bool) -> Any:
    """A `Qwen2_5OmniToken2WavModel` in float32, its real data type."""
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

    config = Qwen2_5OmniToken2WavConfig(
        **(_TOKEN2WAV_TINY if tiny else {"dit_config": {}, "bigvgan_config": {}}), attn_implementation="sdpa"
    )
    with drawn_on(device, torch.float32):
        return Qwen2_5OmniToken2WavModel(config).eval()


def twin(module: torch.nn.Module) -> torch.nn.Module:
    """A second module over the very same parameters and buffers.

    Modes change a module in place, so each needs its own; the weights are on the device once.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo=shared)


def twin_pipeline(pipeline: Any) -> Any:
    """A second pipeline with its own denoiser, autoencoder and scheduler and the same weights."""
    changed = {name: twin(pipeline.components[name]) for name in ("transformer", "vae") if name in pipeline.components}
    parts = {**pipeline.components, **changed}
    # Settings that are no parts, such as Wan's boundary between two experts.
    names = inspect.signature(type(pipeline).__init__).parameters.keys() - parts.keys()
    settings = {name: pipeline.config[name] for name in names if name in pipeline.config}
    made = type(pipeline)(**{**parts, **settings, "scheduler": copy.deepcopy(pipeline.scheduler)})
    made.set_progress_bar_config(disable=True)
    return made


@contextmanager
def drawn_on(device: torch.device, dtype: torch.dtype):
    """Draw new parameters on the device, the same ones each time."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)
