"""Builder of a complete Qwen3-Omni folder of any size: configuration, weights and processor."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import (
    Qwen2Tokenizer,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    Qwen3OmniMoeProcessor,
)

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.speaking import media_token_keys, save_model, speech_state_dict, write_processor
from omni_cli.checkpoints.tokenizer import train_tokenizer
from omni_cli.checkpoints.weights import Draw, normal_tensor
from omni_cli.models.qwen3_omni.checkpoint.sizes import NUM_SUPPRESSED_IDS, TINY, ExpertSizes, Qwen3OmniSizes
from omni_cli.models.qwen3_omni.checkpoint.tokens import CHAT_TEMPLATE, TOKENS

_PATCH_SIZE = 16
_SPEAKERS = ("chelsie", "ethan", "aiden")
# A frame is 80 ms: 1,920 samples at 24 kHz.
_UPSAMPLE_RATES = [8, 5, 4, 3]
_UPSAMPLING_RATIOS = [2, 2]
# Positions of the image encoder's embeddings, a square that is interpolated for other shapes of images.
_NUM_VISION_POSITIONS = 64

_GAINS = {
    "code_predictor.lm_head": 3.0,
    # As many rows as codebooks are summed or averaged, and each must be audible.
    "code2wav.code_embedding": 3.0,
    # Loud enough to hear and rarely clipped.
    "conv2.conv": 0.3,
    "code2wav.decoder.6.conv": 0.05,
}


def tiny_qwen3_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-qwen3-omni`."""
    write_omni(output_dir, TINY, seed)


def write_omni(output_dir: Path, sizes: Qwen3OmniSizes, seed: int, *, draw: Draw = normal_tensor) -> None:
    """Write all files that `Qwen3OmniMoeForConditionalGeneration.from_pretrained` and vLLM read.

    `draw` draws the weights.
    """
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings, TOKENS)
    with quiet_transformers():
        config = omni_config(sizes, tokenizer)
        with torch.device("meta"):
            model = Qwen3OmniMoeForConditionalGeneration(config)
        talker = config.talker_config
        state = speech_state_dict(
            model,
            tokenizer,
            seed,
            first_special=talker.codec_pad_id,
            end=talker.codec_eos_token_id,
            gains=_GAINS,
            draw=draw,
        )
        save_model(output_dir, model, state, tokenizer)
        write_processor(output_dir, tokenizer, Qwen3OmniMoeProcessor, CHAT_TEMPLATE, patch_size=_PATCH_SIZE)
    make_readable(output_dir)


def omni_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> Qwen3OmniMoeConfig:
    """Return the configuration, with all token ids inside the small vocabularies."""
    token_id = tokenizer.convert_tokens_to_ids
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker_config(sizes, tokenizer),
        talker_config=_talker_config(sizes, tokenizer),
        code2wav_config=_code2wav_config(sizes),
        enable_audio_output=True,
        im_start_token_id=token_id("<|im_start|>"),
        im_end_token_id=token_id("<|im_end|>"),
        tts_pad_token_id=token_id("<tts_pad>"),
        tts_bos_token_id=token_id("<tts_text_bos>"),
        tts_eos_token_id=token_id("<tts_text_eod>"),
        system_token_id=token_id("system"),
        user_token_id=token_id("user"),
        assistant_token_id=token_id("assistant"),
        dtype="float32",
    )


def _experts(sizes: ExpertSizes) -> dict[str, object]:
    shared = {"shared_expert_intermediate_size": sizes.shared_size} if sizes.shared_size else {}
    return {
        "num_experts": sizes.num_experts,
        "num_experts_per_tok": sizes.num_per_token,
        "moe_intermediate_size": sizes.size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        **shared,
    }


def _mrope(head_dim: int) -> dict[str, object]:
    """Return rotary pairs for time, height and width, in the release's proportions 24 : 20 : 20."""
    side = head_dim * 5 // 32
    return {
        "rope_type": "default",
        "rope_theta": 1_000_000.0,
        "mrope_section": [head_dim // 2 - 2 * side, side, side],
        "interleaved": True,
        "mrope_interleaved": True,
    }


def _thinker_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    return {
        **media_token_keys(tokenizer, "token_id", position_id_per_seconds=13),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "text_config": {
            **sizes.thinker.config,
            "tie_word_embeddings": False,
            **_experts(sizes.thinker_experts),
            "vocab_size": sizes.vocab_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _mrope(sizes.thinker.head_dim),
        },
        "audio_config": {
            **sizes.audio.audio_config(sizes.thinker.hidden_size),
            "downsample_hidden_size": sizes.audio.hidden_size // 2,
        },
        "vision_config": {
            **sizes.vision.vision_config(sizes.thinker.hidden_size),
            "deepstack_visual_indexes": list(sizes.deepstack),
            "patch_size": _PATCH_SIZE,
            "num_position_embeddings": _NUM_VISION_POSITIONS,
            # Two keys that vLLM needs, transformers does not have, and the release contains.
            "image_size": _PATCH_SIZE * math.isqrt(_NUM_VISION_POSITIONS),
            "apply_vit_abs_pos_embed": True,
        },
    }


def _talker_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    first = sizes.num_codes
    return {
        **media_token_keys(tokenizer, "token_id", position_id_per_seconds=13),
        "num_code_groups": sizes.num_code_groups,
        "thinker_hidden_size": sizes.thinker.hidden_size,
        "accept_hidden_layer": sizes.accept_hidden_layer,
        "spatial_merge_size": 2,
        "codec_pad_id": first,
        "codec_bos_id": first + 1,
        "codec_eos_token_id": first + 2,
        "codec_nothink_id": first + 3,
        "codec_think_bos_id": first + 4,
        "codec_think_eos_id": first + 5,
        "speaker_id": {name: first + 6 + index for index, name in enumerate(_SPEAKERS)},
        "text_config": {
            **sizes.talker.config,
            "tie_word_embeddings": False,
            **_experts(sizes.talker_experts),
            "vocab_size": sizes.num_codes + NUM_SUPPRESSED_IDS,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _mrope(sizes.talker.head_dim),
        },
        "code_predictor_config": {
            **sizes.code_predictor.config,
            "tie_word_embeddings": False,
            "vocab_size": sizes.num_codes,
            "num_code_groups": sizes.num_code_groups,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    }


def _code2wav_config(sizes: Qwen3OmniSizes) -> dict[str, object]:
    codec = sizes.code2wav
    return {
        "codebook_size": sizes.num_codes,
        "num_quantizers": sizes.num_code_groups,
        "hidden_size": codec.hidden_size,
        "intermediate_size": codec.intermediate_size,
        "num_hidden_layers": codec.num_hidden_layers,
        "num_attention_heads": codec.num_attention_heads,
        "num_key_value_heads": codec.num_attention_heads,
        "sliding_window": codec.sliding_window,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "decoder_dim": codec.decoder_dim,
        "upsample_rates": _UPSAMPLE_RATES,
        "upsampling_ratios": _UPSAMPLING_RATIOS,
    }
