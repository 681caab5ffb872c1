"""Builder of a complete Qwen-Image pipeline folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from omni_cli.checkpoints.output_files import save_pipeline
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.tokenizer import train_tokenizer

# The scheduler of the released Qwen-Image.
_SCHEDULER = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "invert_sigmas": False,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}

# Large enough that the prompt affects the image next to the initial noise.
_GAINS = {"add_v_proj": 4.0, "to_out": 2.0, "proj_out": 3.0}


@dataclass(frozen=True)
class ImageSizes:
    """A Qwen-Image pipeline. The defaults are `tiny-image`'s.

    `head_dim` is split over the image's three axes by the rotary embedding and must be a multiple of 16.
    """

    vocab_size: int = 1024
    text_encoder: DecoderSizes = field(default_factory=lambda: DecoderSizes(64, 128, 2, 2, 1, 32))
    num_layers: int = 2
    num_attention_heads: int = 2
    head_dim: int = 32
    vae_base_dim: int = 16


def tiny_image(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-image`."""
    write_image(output_dir, ImageSizes(), seed)


def write_image(output_dir: Path, sizes: ImageSizes, seed: int) -> None:
    """Write everything that `QwenImagePipeline.from_pretrained` reads."""
    tokenizer = train_tokenizer(sizes.vocab_size, model_max_length=4096)
    height_width = sizes.head_dim * 7 // 16
    with torch.device("meta"):
        parts = {
            "transformer": QwenImageTransformer2DModel(
                num_layers=sizes.num_layers,
                num_attention_heads=sizes.num_attention_heads,
                attention_head_dim=sizes.head_dim,
                joint_attention_dim=sizes.text_encoder.hidden_size,
                # Time, height, width: Qwen-Image's own proportions.
                axes_dims_rope=(sizes.head_dim - 2 * height_width, height_width, height_width),
            ),
            "vae": AutoencoderKLQwenImage(base_dim=sizes.vae_base_dim, dim_mult=[1, 2, 2, 2], num_res_blocks=1),
            "text_encoder": Qwen2_5_VLForConditionalGeneration(_text_config(sizes, tokenizer)),
        }
    scheduler = FlowMatchEulerDiscreteScheduler(**_SCHEDULER)
    save_pipeline(output_dir, QwenImagePipeline, parts, seed, _GAINS, scheduler=scheduler, tokenizer=tokenizer)


def _text_config(sizes: ImageSizes, tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLConfig:
    text, token_id = sizes.text_encoder, tokenizer.convert_tokens_to_ids
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": sizes.vocab_size,
            **text.config_of_whole_heads,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": text.mrope_section,
            },
            "bos_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        # Qwen-Image reads text only; the smallest vision tower completes the architecture.
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "depth": 1,
            "num_heads": 1,
            "fullatt_block_indexes": [0],
            "out_hidden_size": text.hidden_size,
        },
        image_token_id=token_id("<|IMAGE|>"),
        video_token_id=token_id("<|VIDEO|>"),
        vision_start_token_id=token_id("<|vision_bos|>"),
        vision_end_token_id=token_id("<|vision_eos|>"),
        tie_word_embeddings=False,
        dtype="float32",
    )
