"""Builder of a complete Qwen3-Omni folder of any size: configuration, weights and processor."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    Qwen2Tokenizer,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
)

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.tokenizer import train_tokenizer, unreadable_token_ids
from omni_cli.checkpoints.weights import Draw, normal_tensor, random_state_dict, shape_head
from omni_cli.models.qwen3_omni.checkpoint.processor import PATCH_SIZE, TOKENS, write_processor
from omni_cli.models.qwen3_omni.checkpoint.sizes import NUM_SUPPRESSED_IDS, TINY, ExpertSizes, Qwen3OmniSizes

_SPEAKERS = ("chelsie", "ethan", "aiden")
# A frame is 80 ms: 1,920 samples at 24 kHz.
_UPSAMPLE_RATES = [8, 5, 4, 3]
_UPSAMPLING_RATIOS = [2, 2]
# Positions of the image encoder's embeddings, interpolated for images of other shapes: a square.
_NUM_VISION_POSITIONS = 64

_GAINS = {
    # Attention that is sharp and weighs as much as the last token: answers depend on the whole prompt, and codes
    # do not fall into a short cycle once the text that they follow has ended.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    # silu(gate) * up loses about half of the scale.
    "down_proj": 2.0,
    # Confident enough that greedy choices do not depend on the last bits of a logit.
    "thinker.lm_head": 3.0,
    "talker.codec_head": 3.0,
    "code_predictor.lm_head": 3.0,
    # Rows of as many codebooks are added up, or averaged, and each must be heard.
    "code2wav.code_embedding": 3.0,
    # Loud enough to hear and seldom clipped.
    "conv2.conv": 0.3,
    "code2wav.decoder.6.conv": 0.05,
}

# Lengths of the rows of the end tokens: text ends about once in a hundred steps, speech less often.
_TEXT_END_GAIN = 0.34
_CODEC_END_GAIN = 0.28


def tiny_qwen3_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-qwen3-omni`."""
    write_omni(output_dir, TINY, seed)


def write_omni(output_dir: Path, sizes: Qwen3OmniSizes, seed: int, *, draw: Draw = normal_tensor) -> None:
    """Write everything that `Qwen3OmniMoeForConditionalGeneration.from_pretrained` and vLLM read.

    `draw` makes the weights.
    """
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings, TOKENS)
    with quiet_transformers():
        config = omni_config(sizes, tokenizer)
        with torch.device("meta"):
            model = Qwen3OmniMoeForConditionalGeneration(config)
        model.load_state_dict(_weights(model, config, tokenizer, seed, draw), assign=True)
        # vLLM and `generate` stop at this token.
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
        model.save_pretrained(output_dir)
        write_processor(output_dir, tokenizer)
    make_readable(output_dir)


def omni_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> Qwen3OmniMoeConfig:
    """The configuration, with all token ids inside the small vocabularies."""
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


def _media_token_ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    """The keys that thinker and talker share."""
    token_id = tokenizer.convert_tokens_to_ids
    return {
        "audio_token_id": token_id("<|audio_pad|>"),
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "audio_start_token_id": token_id("<|audio_start|>"),
        "audio_end_token_id": token_id("<|audio_end|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _decoder(sizes: DecoderSizes) -> dict[str, object]:
    return {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "head_dim": sizes.head_dim,
        "tie_word_embeddings": False,
    }


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
    """Rotary pairs for time, height and width, in the release's proportions, 24 : 20 : 20."""
    side = head_dim * 5 // 32
    return {
        "rope_type": "default",
        "rope_theta": 1_000_000.0,
        "mrope_section": [head_dim // 2 - 2 * side, side, side],
        "interleaved": True,
        "mrope_interleaved": True,
    }


def _thinker_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    audio, vision = sizes.audio, sizes.vision
    return {
        **_media_token_ids(tokenizer),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "text_config": {
            **_decoder(sizes.thinker),
            **_experts(sizes.thinker_experts),
            "vocab_size": sizes.vocab_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _mrope(sizes.thinker.head_dim),
        },
        "audio_config": {
            "d_model": audio.hidden_size,
            "encoder_ffn_dim": audio.intermediate_size,
            "encoder_layers": audio.num_hidden_layers,
            "encoder_attention_heads": audio.num_attention_heads,
            "num_mel_bins": 128,
            "downsample_hidden_size": audio.hidden_size // 2,
            "output_dim": sizes.thinker.hidden_size,
        },
        "vision_config": {
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "depth": vision.num_hidden_layers,
            "num_heads": vision.num_attention_heads,
            "deepstack_visual_indexes": list(sizes.deepstack),
            "patch_size": PATCH_SIZE,
            "num_position_embeddings": _NUM_VISION_POSITIONS,
            # transformers does not know these two, vLLM needs them, and the release has them.
            "image_size": PATCH_SIZE * math.isqrt(_NUM_VISION_POSITIONS),
            "apply_vit_abs_pos_embed": True,
            "out_hidden_size": sizes.thinker.hidden_size,
        },
    }


def _talker_config(sizes: Qwen3OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    first = sizes.num_codes
    return {
        **_media_token_ids(tokenizer),
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
            **_decoder(sizes.talker),
            **_experts(sizes.talker_experts),
            "vocab_size": sizes.num_codes + NUM_SUPPRESSED_IDS,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _mrope(sizes.talker.head_dim),
        },
        "code_predictor_config": {
            **_decoder(sizes.code_predictor),
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


def _weights(
    model: Qwen3OmniMoeForConditionalGeneration,
    config: Qwen3OmniMoeConfig,
    tokenizer: Qwen2Tokenizer,
    seed: int,
    draw: Draw,
) -> dict[str, torch.Tensor]:
    """Random weights whose outputs are made of readable tokens and of codes, with an end now and then."""
    state = random_state_dict(model, seed, gains=_GAINS, draw=draw)
    talker, vocab_size = config.talker_config, config.thinker_config.text_config.vocab_size
    shape_head(
        state["thinker.lm_head.weight"],
        never=[*unreadable_token_ids(tokenizer), *range(len(tokenizer), vocab_size)],
        end=tokenizer.eos_token_id,
        end_gain=_TEXT_END_GAIN,
    )
    shape_head(
        state["talker.codec_head.weight"],
        never=list(range(talker.codec_pad_id, talker.text_config.vocab_size)),
        end=talker.codec_eos_token_id,
        end_gain=_CODEC_END_GAIN,
    )
    return state
