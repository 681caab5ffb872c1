"""Builder of a complete Stable Audio pipeline folder."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderOobleck,
    EDMDPMSolverMultistepScheduler,
    StableAudioDiTModel,
    StableAudioPipeline,
    StableAudioProjectionModel,
)
from transformers import T5Config, T5EncoderModel

from omni_cli.checkpoints.output_files import save_pipeline
from omni_cli.checkpoints.tokenizer import train_tokenizer

_VOCAB_SIZE = 1024
_TEXT_SIZE = 64
_LATENT_CHANNELS = 8
# Of the released Stable Audio Open.
_SCHEDULER = {
    "sigma_min": 0.3,
    "sigma_max": 500,
    "sigma_data": 1.0,
    "solver_order": 2,
    "prediction_type": "v_prediction",
}
# Large enough that the prompt affects the audio next to the initial noise, with samples in [-1, 1].
_GAINS = {"to_out": 2.0, "proj_out": 3.0, "decoder.conv2": 1e-3}


def tiny_audio(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-audio`: everything that `StableAudioPipeline.from_pretrained` reads; stereo at 44.1 kHz."""
    tokenizer = train_tokenizer(_VOCAB_SIZE, model_max_length=128)
    text = T5Config(
        vocab_size=_VOCAB_SIZE,
        d_model=_TEXT_SIZE,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.device("meta"):
        parts = {
            "text_encoder": T5EncoderModel(text),
            "projection_model": StableAudioProjectionModel(
                text_encoder_dim=_TEXT_SIZE, conditioning_dim=_TEXT_SIZE, min_value=0, max_value=512
            ),
            "transformer": StableAudioDiTModel(
                sample_size=172,
                in_channels=_LATENT_CHANNELS,
                out_channels=_LATENT_CHANNELS,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=4,
                num_key_value_attention_heads=2,
                cross_attention_dim=_TEXT_SIZE,
                cross_attention_input_dim=_TEXT_SIZE,
                global_states_input_dim=2 * _TEXT_SIZE,
                time_proj_dim=64,
            ),
            "vae": AutoencoderOobleck(
                encoder_hidden_size=16,
                downsampling_ratios=[2, 4, 8, 8],
                channel_multiples=[1, 1, 2, 2],
                decoder_channels=16,
                decoder_input_channels=_LATENT_CHANNELS,
            ),
        }
    scheduler = EDMDPMSolverMultistepScheduler(**_SCHEDULER)
    save_pipeline(output_dir, StableAudioPipeline, parts, seed, _GAINS, scheduler=scheduler, tokenizer=tokenizer)
