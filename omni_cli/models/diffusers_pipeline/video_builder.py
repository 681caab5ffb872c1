"""Builder of a complete Wan pipeline folder."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVideoToVideoPipeline,
)
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from omni_cli.checkpoints.output_files import save_pipeline
from omni_cli.checkpoints.tokenizer import train_tokenizer

_VOCAB_SIZE = 1024
_TEXT_SIZE = 64
_LATENT_CHANNELS = 16
# Of the released Wan 2.2 A14B: its scheduler, and the share of the noise above which the first expert denoises.
_SCHEDULER = {
    "flow_shift": 3.0,
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
}
_BOUNDARY_RATIO = 0.875
# Large enough that the prompt affects the video next to the initial noise, with pixels in [-1, 1].
_GAINS = {"to_out": 2.0, "proj_out": 3.0, "decoder.conv_out": 0.4}


def tiny_video(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-video`: text to video with the two experts of Wan 2.2."""
    write_video(output_dir, WanPipeline, seed)


def write_video(
    output_dir: Path, pipeline: type[WanPipeline | WanImageToVideoPipeline | WanVideoToVideoPipeline], seed: int
) -> None:
    """Write everything that the pipeline's `from_pretrained` reads; that of image to video needs no image encoder."""
    tokenizer = train_tokenizer(_VOCAB_SIZE, model_max_length=512)
    # Beside the noise: the latents of the image, and a mask of the frames that it gives, four of them per latent frame.
    condition_channels = _LATENT_CHANNELS + 4 if pipeline is WanImageToVideoPipeline else 0
    parts = {"text_encoder": _text_encoder(tokenizer.pad_token_id, tokenizer.eos_token_id), "vae": _vae()}
    for name in ("transformer",) if pipeline is WanVideoToVideoPipeline else ("transformer", "transformer_2"):
        parts[name] = _transformer(_LATENT_CHANNELS + condition_channels)
    experts: dict[str, float | None] = {}
    if pipeline is not WanVideoToVideoPipeline:
        experts["boundary_ratio"] = _BOUNDARY_RATIO
    if pipeline is WanImageToVideoPipeline:
        experts |= {"image_encoder": None, "image_processor": None}
    scheduler = UniPCMultistepScheduler(**_SCHEDULER)
    save_pipeline(output_dir, pipeline, parts, seed, _GAINS, scheduler=scheduler, tokenizer=tokenizer, **experts)


def _text_encoder(pad_token_id: int, eos_token_id: int) -> nn.Module:
    config = UMT5Config(
        vocab_size=_VOCAB_SIZE,
        d_model=_TEXT_SIZE,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        dtype="float32",
    )
    with torch.device("meta"):
        return UMT5EncoderModel(config)


def _transformer(in_channels: int) -> nn.Module:
    with torch.device("meta"):
        return WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=32,
            in_channels=in_channels,
            out_channels=_LATENT_CHANNELS,
            text_dim=_TEXT_SIZE,
            freq_dim=64,
            ffn_dim=128,
            num_layers=2,
        )


def _vae() -> nn.Module:
    """Frames become one latent frame per four, and one for the first, of an eighth of their size."""
    with torch.device("meta"):
        return AutoencoderKLWan(
            base_dim=8,
            z_dim=_LATENT_CHANNELS,
            dim_mult=[1, 2, 2, 2],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
        )
