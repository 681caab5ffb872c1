"""A small LTX-2 pipeline with random weights: video and stereo sound from one transformer."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from omni_cli.checkpoints.tokenizer import train_tokenizer

_VOCAB_SIZE = 1024
_TEXT_SIZE = 32
_TEXT_LAYERS = 2
_LATENT_CHANNELS = 8
_AUDIO_CHANNELS = 2  # of the latents: those of each mel bin are channels to the transformer
_MEL_BINS = 16
_MEL_COMPRESSION = 4


def build_ltx2(folder: Path) -> None:
    torch.manual_seed(0)
    audio_size = _AUDIO_CHANNELS * _MEL_BINS // _MEL_COMPRESSION
    transformer = LTX2VideoTransformer3DModel(
        in_channels=_LATENT_CHANNELS,
        out_channels=_LATENT_CHANNELS,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        audio_in_channels=audio_size,
        audio_out_channels=audio_size,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        num_layers=2,
        caption_channels=_TEXT_SIZE,
        rope_double_precision=False,
    )
    connectors = LTX2TextConnectors(
        caption_channels=_TEXT_SIZE,
        text_proj_in_factor=_TEXT_LAYERS + 1,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=16,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=8,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=16,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=8,
        rope_double_precision=False,
    )
    pipeline = LTX2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_video_vae(),
        audio_vae=AutoencoderKLLTX2Audio(
            base_channels=audio_size,
            ch_mult=(1, 2, 2),
            num_res_blocks=1,
            latent_channels=_AUDIO_CHANNELS,
            mel_bins=_MEL_BINS,
        ),
        text_encoder=_text_encoder(),
        tokenizer=train_tokenizer(_VOCAB_SIZE, model_max_length=64),
        connectors=connectors,
        transformer=transformer,
        vocoder=LTX2Vocoder(in_channels=2 * _MEL_BINS, hidden_channels=32),
    )
    pipeline.save_pretrained(folder)


def _video_vae() -> AutoencoderKLLTX2Video:
    return AutoencoderKLLTX2Video(
        latent_channels=_LATENT_CHANNELS,
        block_out_channels=(8, 16, 16, 16),
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        # As published: otherwise each of the four blocks would count as a spatial one.
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    )


def _text_encoder() -> Gemma3ForConditionalGeneration:
    config = Gemma3Config(
        text_config={
            "vocab_size": _VOCAB_SIZE,
            "hidden_size": _TEXT_SIZE,
            "intermediate_size": 64,
            "num_hidden_layers": _TEXT_LAYERS,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
    )
    return Gemma3ForConditionalGeneration(config)
