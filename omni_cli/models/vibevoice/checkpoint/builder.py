"""Builder of a complete VibeVoice folder of any size: configuration, weights, tokenizer and processor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Tokenizer, VibeVoiceConfig, VibeVoiceForConditionalGeneration

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.weights import Draw, normal_tensor, random_state_dict
from omni_cli.models.vibevoice.checkpoint.processor import (
    AUDIO,
    BEGIN_AUDIO,
    END,
    END_AUDIO,
    make_tokenizer,
    write_processor,
)

_GAINS = {
    # Sharp attention, so that speech depends on the whole text.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    "down_proj": 2.0,
    # What a step's sound adds to the next input: less than one, or rounding grows by a third in every step.
    "multi_modal_projector.linear_2.weight": 0.1,
    "semantic_connector.linear_2.weight": 0.1,
    # The last convolution: loud enough to hear and rarely clipped.
    "audio_tower.decoder.head.conv": 0.04,
}
# Every input has a common direction, along which the head of the token that becomes sound is longer.
_COMMON_INPUT, _AUDIO_LOGIT, _OTHER_LOGIT = 1.0, 0.08, 1.6


@dataclass(frozen=True)
class TokenizerSizes:
    """One of the two tokenizers of sound."""

    hidden_size: int
    num_filters: int


@dataclass(frozen=True)
class VibeVoiceSizes:
    """Sizes of VibeVoice. The defaults are those of `tiny-vibevoice`, with the release's 3,200 samples a latent."""

    vocab_size: int = 512
    max_position_embeddings: int = 4096
    backbone: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    acoustic: TokenizerSizes = field(default_factory=lambda: TokenizerSizes(16, 4))
    semantic: TokenizerSizes = field(default_factory=lambda: TokenizerSizes(24, 4))
    num_head_layers: int = 2
    downsampling_ratios: tuple[int, ...] = (2, 2, 4, 5, 5, 8)
    num_diffusion_steps: int = 4
    guidance_scale: float = 1.3


def tiny_vibevoice(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-vibevoice`."""
    write_vibevoice(output_dir, VibeVoiceSizes(), seed)


def write_vibevoice(output_dir: Path, sizes: VibeVoiceSizes, seed: int) -> None:
    """Write all files that `VibeVoiceForConditionalGeneration.from_pretrained` and vLLM read."""
    tokenizer = make_tokenizer(sizes.vocab_size, sizes.max_position_embeddings)
    with quiet_transformers():
        config = vibevoice_config(sizes, tokenizer)
    diffusion = {"guidance_scale": sizes.guidance_scale, "num_diffusion_steps": sizes.num_diffusion_steps}
    write_checkpoint(output_dir, config, tokenizer, diffusion, seed)


def write_checkpoint(
    output_dir: Path,
    config: VibeVoiceConfig,
    tokenizer: Qwen2Tokenizer,
    diffusion: dict[str, float],
    seed: int,
    *,
    draw: Draw = normal_tensor,
    audio_logit: float = _AUDIO_LOGIT,
) -> None:
    """Write a checkpoint's files. With a larger `audio_logit`, speech does not end."""
    with quiet_transformers():
        with torch.device("meta"):
            model = VibeVoiceForConditionalGeneration(config)
        model.load_state_dict(_weights(model, config, seed, draw, audio_logit), assign=True)
        model.generation_config = GenerationConfig(
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
            noise_scheduler_class="DPMSolverMultistepScheduler",
            noise_scheduler_config={"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
            **diffusion,
        )
        model.save_pretrained(output_dir)
        write_processor(output_dir, tokenizer, config.audio_config.hop_length)
    make_readable(output_dir)


def vibevoice_config(sizes: VibeVoiceSizes, tokenizer: Qwen2Tokenizer) -> VibeVoiceConfig:
    """Return the configuration, with all token ids inside the small vocabulary."""
    end, begin_audio, end_audio, audio = tokenizer.convert_tokens_to_ids([END, BEGIN_AUDIO, END_AUDIO, AUDIO])
    ratios = list(sizes.downsampling_ratios)
    codec = {"downsampling_ratios": ratios, "depths": [1] * (len(ratios) + 1)}
    return VibeVoiceConfig(
        text_config={
            "model_type": "qwen2",
            **sizes.backbone.config_of_whole_heads,
            "vocab_size": sizes.vocab_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "tie_word_embeddings": False,
        },
        audio_config={**codec, **vars(sizes.acoustic)},
        semantic_model_config={**codec, **vars(sizes.semantic)},
        diffusion_head_config={
            "hidden_size": sizes.backbone.hidden_size,
            "latent_size": sizes.acoustic.hidden_size,
            "num_hidden_layers": sizes.num_head_layers,
            "intermediate_size": sizes.backbone.intermediate_size,
            "frequency_embedding_size": 32,
        },
        pad_token_id=end,
        eos_token_id=end,
        audio_bos_token_id=begin_audio,
        audio_eos_token_id=end_audio,
        audio_token_id=audio,
        dtype="float32",
    )


def _weights(
    model: VibeVoiceForConditionalGeneration, config: VibeVoiceConfig, seed: int, draw: Draw, audio_logit: float
) -> dict[str, torch.Tensor]:
    """Draw weights with which speech ends now and then, and begins again."""
    state = random_state_dict(model, seed, gains=_GAINS, draw=draw)
    hidden_size = config.text_config.hidden_size
    common = draw("common direction", (hidden_size,), 0.0, 1.0, seed)
    state["model.language_model.embed_tokens.weight"] += _COMMON_INPUT * common
    state["model.multi_modal_projector.linear_2.bias"] += _COMMON_INPUT * common
    head = state["lm_head.weight"]
    controls = [config.eos_token_id, config.audio_bos_token_id, config.audio_eos_token_id]
    head[controls] *= _OTHER_LOGIT
    head[config.audio_token_id] += audio_logit * math.sqrt(128 / hidden_size) * common
    return state
