"""Builder of a complete Qwen2.5-Omni folder of any size: configuration, weights, processor and speakers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2Tokenizer,
)

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.tokenizer import train_tokenizer, unreadable_token_ids
from omni_cli.checkpoints.weights import Draw, normal_tensor, random_state_dict, shape_head
from omni_cli.models.qwen2_5_omni.checkpoint.processor import write_processor
from omni_cli.models.qwen2_5_omni.checkpoint.sizes import SMALL, TINY, OmniSizes
from omni_cli.models.qwen2_5_omni.speakers import Speaker

_MEL_DIM = 80
_REFERENCE_MEL_FRAMES = 96
# BigVGAN makes 240 samples per mel frame, token2wav two frames per code: 50 codes are a second at 24 kHz.
_UPSAMPLE_RATES = [5, 3, 2, 2, 2, 2]
_UPSAMPLE_KERNEL_SIZES = [11, 7, 4, 4, 4, 4]

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
    # Loud enough to hear and seldom clipped, whatever the number of channels.
    "bigvgan_model.resblocks": 0.3,
    "conv_post": 0.12,
    # Codes and mel frames must be heard over the vocoder's own hum.
    "codec_embed": 3.0,
    "dit_model.proj_out": 2.0,
    "conv_pre": 4.0,
}

# Lengths of the rows of the end tokens: text ends about once in a hundred steps, speech less often.
_TEXT_END_GAIN = 0.34
_CODEC_END_GAIN = 0.28


def tiny_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-omni`."""
    write_omni(output_dir, TINY, seed)


def small_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:small-omni`."""
    write_omni(output_dir, SMALL, seed)


def write_omni(output_dir: Path, sizes: OmniSizes, seed: int) -> None:
    """Write everything that `Qwen2_5OmniForConditionalGeneration.from_pretrained` and vLLM read."""
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings)
    with quiet_transformers():
        config = omni_config(sizes, tokenizer)
    write_checkpoint(output_dir, config, tokenizer, seed)


def write_checkpoint(
    output_dir: Path, config: Qwen2_5OmniConfig, tokenizer: Qwen2Tokenizer, seed: int, *, draw: Draw = normal_tensor
) -> None:
    """Write a model of that configuration, its processor and its speakers; `draw` makes the weights."""
    with quiet_transformers():
        with torch.device("meta"):
            model = Qwen2_5OmniForConditionalGeneration(config)
        model.load_state_dict(_weights(model, config, tokenizer, seed, draw), assign=True)
        # vLLM and `generate` stop at this token.
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
        model.save_pretrained(output_dir)
        write_processor(output_dir, tokenizer)
    _name_architecture(output_dir / "config.json")
    speaker_dim = config.token2wav_config.dit_config.enc_emb_dim
    torch.save(_speakers(speaker_dim, tokenizer, seed), output_dir / "spk_dict.pt")
    make_readable(output_dir)


def omni_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> Qwen2_5OmniConfig:
    """The configuration, with all token ids inside the small vocabularies."""
    return Qwen2_5OmniConfig(
        thinker_config=_thinker_config(sizes, tokenizer),
        talker_config=_talker_config(sizes, tokenizer),
        token2wav_config=_token2wav_config(sizes),
        enable_audio_output=True,
        dtype="float32",
    )


def _media_token_ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    """The keys that thinker and talker share."""
    token_id = tokenizer.convert_tokens_to_ids
    return {
        "audio_token_index": token_id("<|AUDIO|>"),
        "image_token_index": token_id("<|IMAGE|>"),
        "video_token_index": token_id("<|VIDEO|>"),
        "audio_start_token_id": token_id("<|audio_bos|>"),
        "audio_end_token_id": token_id("<|audio_eos|>"),
        "vision_start_token_id": token_id("<|vision_bos|>"),
        "vision_end_token_id": token_id("<|vision_eos|>"),
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }


def _thinker_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    thinker, audio, vision = sizes.thinker, sizes.audio, sizes.vision
    pad_token_id, eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    return {
        **_media_token_ids(tokenizer),
        "vision_token_id": tokenizer.convert_tokens_to_ids("<|vision_pad|>"),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "bos_token_id": pad_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "text_config": {
            "vocab_size": sizes.vocab_size,
            "hidden_size": thinker.hidden_size,
            "intermediate_size": thinker.intermediate_size,
            "num_hidden_layers": thinker.num_hidden_layers,
            "num_attention_heads": thinker.num_attention_heads,
            "num_key_value_heads": thinker.num_key_value_heads,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _rope(thinker.mrope_section),
            "bos_token_id": pad_token_id,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            "tie_word_embeddings": False,
        },
        "audio_config": {
            "d_model": audio.hidden_size,
            "encoder_ffn_dim": audio.intermediate_size,
            "encoder_layers": audio.num_hidden_layers,
            "encoder_attention_heads": audio.num_attention_heads,
            "num_mel_bins": 128,
            "output_dim": thinker.hidden_size,
        },
        "vision_config": {
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "depth": vision.num_hidden_layers,
            "num_heads": vision.num_attention_heads,
            # Windowed attention in all layers but the last, as in the released models' groups of eight.
            "fullatt_block_indexes": [vision.num_hidden_layers - 1],
            "out_hidden_size": thinker.hidden_size,
        },
    }


def _talker_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    talker, token_id = sizes.talker, tokenizer.convert_tokens_to_ids
    return {
        **_media_token_ids(tokenizer),
        "vocab_size": talker_vocab_size(sizes),
        "tts_text_pad_token_id": token_id("<|tts_pad|>"),
        "tts_text_start_token_id": token_id("<|tts_bos|>"),
        "tts_text_end_token_id": token_id("<|tts_eos|>"),
        "tts_codec_pad_token_id": sizes.num_codes,
        "tts_codec_start_token_id": sizes.num_codes + 1,
        "tts_codec_end_token_id": sizes.num_codes + 2,
        "tts_codec_mask_token_id": sizes.num_codes + 3,
        "embedding_size": sizes.thinker.hidden_size,
        "hidden_size": talker.hidden_size,
        "intermediate_size": talker.intermediate_size,
        "num_hidden_layers": talker.num_hidden_layers,
        "num_attention_heads": talker.num_attention_heads,
        "num_key_value_heads": talker.num_key_value_heads,
        "head_dim": talker.head_dim,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rope_parameters": _rope(talker.mrope_section),
        "tie_word_embeddings": False,
    }


def talker_vocab_size(sizes: OmniSizes) -> int:
    """The codes, four special tokens, and padding to a multiple of 64 that vLLM's vocabulary shards like."""
    return math.ceil((sizes.num_codes + 4) / 64) * 64


def _rope(mrope_section: list[int]) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": mrope_section}


def _token2wav_config(sizes: OmniSizes) -> dict[str, object]:
    vocoder = sizes.token2wav
    channels = vocoder.hidden_size // 2
    return {
        "dit_config": {
            "hidden_size": vocoder.hidden_size,
            "num_hidden_layers": vocoder.num_hidden_layers,
            "num_attention_heads": vocoder.num_attention_heads,
            "head_dim": vocoder.head_dim,
            "emb_dim": vocoder.hidden_size,
            "look_ahead_layers": [vocoder.num_hidden_layers // 2],
            "look_backward_layers": [0, vocoder.num_hidden_layers - 1],
            # A row for every id that the talker can emit, so that no sampled token is out of range.
            "num_embeds": talker_vocab_size(sizes) - 1,
            "mel_dim": _MEL_DIM,
            "enc_emb_dim": vocoder.speaker_dim,
            "enc_dim": vocoder.speaker_dim,
            "enc_channels": [channels, channels, channels, channels, 3 * channels],
            "enc_attention_channels": channels // 2,
            "enc_se_channels": channels // 2,
        },
        "bigvgan_config": {
            "mel_dim": _MEL_DIM,
            "upsample_initial_channel": vocoder.upsample_initial_channel,
            "upsample_rates": _UPSAMPLE_RATES,
            "upsample_kernel_sizes": _UPSAMPLE_KERNEL_SIZES,
        },
    }


def _weights(
    model: Qwen2_5OmniForConditionalGeneration,
    config: Qwen2_5OmniConfig,
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
        never=list(range(talker.tts_codec_pad_token_id, talker.vocab_size)),
        end=talker.tts_codec_end_token_id,
        end_gain=_CODEC_END_GAIN,
    )
    # Taps that sum to zero: the vocoder follows what varies in the mel frames, and adds no constant offset.
    vocoder = "token2wav.code2wav_bigvgan_model."
    for name, dims in (("conv_pre", (1, 2)), ("conv_post", (2,))):
        weight = state[f"{vocoder}{name}.weight"]
        weight -= weight.mean(dim=dims, keepdim=True)
    return state


def _speakers(speaker_dim: int, tokenizer: Qwen2Tokenizer, seed: int) -> dict[str, Speaker]:
    """Per speaker: its first text token, embedding (1, speaker_dim), reference mel (1, num_frames, 80)."""
    return {
        name: {
            "bos_token": tokenizer.convert_tokens_to_ids(f"<|tts_bos_{name.lower()}|>"),
            "cond": normal_tensor(f"speakers.{name}.cond", (1, speaker_dim), 0.0, 1.0, seed),
            "ref_mel": normal_tensor(f"speakers.{name}.ref_mel", (1, _REFERENCE_MEL_FRAMES, _MEL_DIM), -4.0, 2.0, seed),
        }
        for name in ("Chelsie", "Ethan")
    }


def _name_architecture(config_file: Path) -> None:
    """Name the architecture as in the released checkpoints; transformers writes its class's name instead."""
    config = json.loads(config_file.read_text())
    config["architectures"] = ["Qwen2_5OmniModel"]
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
