"""Builder of a complete GLM-Image pipeline folder."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel
from transformers import (
    ByT5Tokenizer,
    GenerationConfig,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from omni_cli.checkpoints.output_files import save_pipeline
from omni_cli.checkpoints.weights import random_state_dict
from omni_cli.models.glm_image.checkpoint.processor import IMAGE_TOKEN, make_processor
from omni_cli.models.glm_image.checkpoint.sizes import GlmImageSizes

# The scheduler and the sampling of the released model.
_SCHEDULER = {
    "base_image_seq_len": 256,
    "base_shift": 0.25,
    "max_image_seq_len": 4096,
    "max_shift": 0.75,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "time_shift_type": "linear",
    "use_dynamic_shifting": True,
}
_SAMPLING = {"do_sample": True, "temperature": 0.9, "top_p": 0.75}

# Large enough for the prompt to determine the tokens, and for tokens and glyphs to affect the image beside the noise.
_AR_GAINS = {"embed_tokens": 4.0, "lm_head": 4.0, "q_proj": 2.0, "k_proj": 2.0, "o_proj": 2.0, "down_proj": 2.0}
_DIFFUSION_GAINS = {"prior_token_embedding": 2.0, "glyph_projector": 2.0, "to_out": 2.0, "proj_out": 3.0}


def tiny_glm_image(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-glm-image`."""
    write_glm_image(output_dir, GlmImageSizes(), seed)


def write_glm_image(output_dir: Path, sizes: GlmImageSizes, seed: int) -> None:
    """Write everything that `GlmImagePipeline.from_pretrained` reads."""
    processor = make_processor(sizes)
    with torch.device("meta"):
        parts = {"text_encoder": _glyph_encoder(sizes), "vae": _vae(sizes), "transformer": _transformer(sizes)}
    save_pipeline(
        output_dir,
        GlmImagePipeline,
        parts,
        seed,
        _DIFFUSION_GAINS,
        vision_language_encoder=_prior(sizes, processor.tokenizer, seed),
        tokenizer=ByT5Tokenizer(),
        processor=processor,
        scheduler=FlowMatchEulerDiscreteScheduler(**_SCHEDULER),
    )


def _prior(sizes: GlmImageSizes, tokenizer: PreTrainedTokenizerFast, seed: int) -> GlmImageForConditionalGeneration:
    config = _prior_config(sizes, tokenizer)
    with torch.device("meta"):
        model = GlmImageForConditionalGeneration(config)
    weights = random_state_dict(model, seed, prefix="vision_language_encoder.", gains=_AR_GAINS)
    _never_end(weights, sizes)
    model.load_state_dict(weights, assign=True)
    model.generation_config = GenerationConfig(
        **_SAMPLING, eos_token_id=sizes.image_end_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model.eval()


def _never_end(weights: dict[str, torch.Tensor], sizes: GlmImageSizes) -> None:
    """Make ids other than image tokens improbable, as training does, so that no image ends early.

    One dimension of the residual stream is constant and lowers the logits of those ids.
    """
    weights["model.language_model.embed_tokens.weight"][:, 0] = 4.0
    for name, weight in weights.items():
        if name.endswith(("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")):
            weight[0] = 0.0
    weights["lm_head.weight"][:, 0] = 0.0
    weights["lm_head.weight"][sizes.num_image_tokens :] = 0.0
    weights["lm_head.weight"][sizes.num_image_tokens :, 0] = -100.0


def _prior_config(sizes: GlmImageSizes, tokenizer: PreTrainedTokenizerFast) -> GlmImageConfig:
    text = sizes.decoder
    return GlmImageConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "vision_vocab_size": sizes.vision_vocab_size,
            **text.config_of_whole_heads,
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                # Half of each head has positions.
                "partial_rotary_factor": 0.5,
                "mrope_section": [size // 2 for size in text.mrope_section],
            },
            "eos_token_id": sizes.image_end_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": sizes.vision_hidden_size,
            "intermediate_size": 2 * sizes.vision_hidden_size,
            "num_heads": 2,
            "image_size": 128,
            "patch_size": sizes.patch_size,
        },
        vq_config={
            "embed_dim": 32,
            "num_embeddings": sizes.num_image_tokens,
            "latent_channels": sizes.vision_hidden_size,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_start_token_id=sizes.image_start_token_id,
        image_end_token_id=sizes.image_end_token_id,
        architectures=["GlmImageForConditionalGeneration"],
        dtype="float32",
    )


def _glyph_encoder(sizes: GlmImageSizes) -> T5EncoderModel:
    config = T5Config(
        vocab_size=384,
        d_model=sizes.glyph_size,
        d_kv=32,
        d_ff=2 * sizes.glyph_size,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        dtype="float32",
    )
    return T5EncoderModel(config)


def _transformer(sizes: GlmImageSizes) -> GlmImageTransformer2DModel:
    return GlmImageTransformer2DModel(
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        text_embed_dim=sizes.glyph_size,
        time_embed_dim=64,
        condition_dim=32,
        prior_vq_quantizer_codebook_size=sizes.num_image_tokens,
    )


def _vae(sizes: GlmImageSizes) -> AutoencoderKL:
    width = sizes.vae_width
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(width, width, 2 * width, 2 * width),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=16,
        sample_size=1024,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        latents_mean=[0.05 * channel - 0.4 for channel in range(16)],
        latents_std=[1.0 + 0.05 * channel for channel in range(16)],
    )
