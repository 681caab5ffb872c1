"""Builder of a complete Qwen2.5-Omni folder of any size: configuration, weights, processor and speakers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniProcessor,
    Qwen2Tokenizer,
)

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.speaking import media_token_keys, save_model, speech_state_dict, write_processor
from omni_cli.checkpoints.tokenizer import train_tokenizer
from omni_cli.checkpoints.weights import Draw, normal_tensor
from omni_cli.models.qwen2_5_omni.checkpoint.sizes import SMALL, TINY, OmniSizes
from omni_cli.models.qwen2_5_omni.speakers import Speaker

_MEL_DIM = 80
_REFERENCE_MEL_FRAMES = 96
# BigVGAN makes 240 samples per mel frame, and token2wav two frames per code, so 50 codes are a second at 24 kHz.
_UPSAMPLE_RATES = [5, 3, 2, 2, 2, 2]
_UPSAMPLE_KERNEL_SIZES = [11, 7, 4, 4, 4, 4]

_GAINS = {
    # Loud enough to hear and rarely clipped, for any number of channels.
    "bigvgan_model.resblocks": 0.3,
    "conv_post": 0.12,
    # Codes and mel frames must be audible over the vocoder's own hum.
    "codec_embed": 3.0,
    "dit_model.proj_out": 2.0,
    "conv_pre": 4.0,
}

CHAT_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] in ['audio', 'audio_url', 'input_audio'] -%}
{{- '<|audio_bos|><|AUDIO|><|audio_eos|>' -}}
{%- elif part['type'] in ['image', 'image_url', 'input_image'] -%}
{{- '<|vision_bos|><|IMAGE|><|vision_eos|>' -}}
{%- elif part['type'] in ['video', 'video_url'] -%}
{{- '<|vision_bos|><|VIDEO|><|vision_eos|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def tiny_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-omni`."""
    write_omni(output_dir, TINY, seed)


def small_omni(output_dir: Path, seed: int) -> None:
    """Write `builtin:small-omni`."""
    write_omni(output_dir, SMALL, seed)


def write_omni(output_dir: Path, sizes: OmniSizes, seed: int) -> None:
    """Write all files that `Qwen2_5OmniForConditionalGeneration.from_pretrained` and vLLM read."""
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings)
    with quiet_transformers():
        config = omni_config(sizes, tokenizer)
    write_checkpoint(output_dir, config, tokenizer, seed)


def write_checkpoint(
    output_dir: Path, config: Qwen2_5OmniConfig, tokenizer: Qwen2Tokenizer, seed: int, *, draw: Draw = normal_tensor
) -> None:
    """Write a model of that configuration, its processor and its speakers; `draw` draws the weights."""
    with quiet_transformers():
        with torch.device("meta"):
            model = Qwen2_5OmniForConditionalGeneration(config)
        save_model(output_dir, model, _weights(model, config, tokenizer, seed, draw), tokenizer)
        write_processor(output_dir, tokenizer, Qwen2_5OmniProcessor, CHAT_TEMPLATE, patch_size=14)
    _name_architecture(output_dir / "config.json")
    speaker_dim = config.token2wav_config.dit_config.enc_emb_dim
    torch.save(_speakers(speaker_dim, tokenizer, seed), output_dir / "spk_dict.pt")
    make_readable(output_dir)


def omni_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> Qwen2_5OmniConfig:
    """Return the configuration, with all token ids inside the small vocabularies."""
    return Qwen2_5OmniConfig(
        thinker_config=_thinker_config(sizes, tokenizer),
        talker_config=_talker_config(sizes, tokenizer),
        token2wav_config=_token2wav_config(sizes),
        enable_audio_output=True,
        dtype="float32",
    )


def _thinker_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    thinker, vision = sizes.thinker, sizes.vision
    pad_token_id, eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    return {
        **media_token_keys(tokenizer, "token_index", position_id_per_seconds=25),
        "vision_token_id": tokenizer.convert_tokens_to_ids("<|vision_pad|>"),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "bos_token_id": pad_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "text_config": {
            "vocab_size": sizes.vocab_size,
            **thinker.config_of_whole_heads,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": _rope(thinker.mrope_section),
            "bos_token_id": pad_token_id,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            "tie_word_embeddings": False,
        },
        "audio_config": sizes.audio.audio_config(thinker.hidden_size),
        "vision_config": {
            **vision.vision_config(thinker.hidden_size),
            # Windowed attention in all layers except the last, like the released models' groups of eight.
            "fullatt_block_indexes": [vision.num_hidden_layers - 1],
        },
    }


def _talker_config(sizes: OmniSizes, tokenizer: Qwen2Tokenizer) -> dict[str, object]:
    talker, token_id = sizes.talker, tokenizer.convert_tokens_to_ids
    return {
        **media_token_keys(tokenizer, "token_index", position_id_per_seconds=25),
        "vocab_size": talker_vocab_size(sizes),
        "tts_text_pad_token_id": token_id("<|tts_pad|>"),
        "tts_text_start_token_id": token_id("<|tts_bos|>"),
        "tts_text_end_token_id": token_id("<|tts_eos|>"),
        "tts_codec_pad_token_id": sizes.num_codes,
        "tts_codec_start_token_id": sizes.num_codes + 1,
        "tts_codec_end_token_id": sizes.num_codes + 2,
        "tts_codec_mask_token_id": sizes.num_codes + 3,
        "embedding_size": sizes.thinker.hidden_size,
        **talker.config,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rope_parameters": _rope(talker.mrope_section),
        "tie_word_embeddings": False,
    }


def talker_vocab_size(sizes: OmniSizes) -> int:
    """Return the codes plus four special tokens, padded to a multiple of 64 for vLLM's vocabulary shards."""
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
            # One row per id that the talker can emit, so that every sampled token is in range.
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
    """Draw weights whose outputs are readable tokens and codes, with an occasional end."""
    talker = config.talker_config
    state = speech_state_dict(
        model,
        tokenizer,
        seed,
        # Released talkers have unused ids between token2wav's codes and the special tokens.
        first_special=min(talker.tts_codec_pad_token_id, config.token2wav_config.dit_config.num_embeds - 1),
        end=talker.tts_codec_end_token_id,
        gains=_GAINS,
        draw=draw,
    )
    # Taps that sum to zero, so that the vocoder follows changes of the mel frames without a constant offset.
    vocoder = "token2wav.code2wav_bigvgan_model."
    for name, dims in (("conv_pre", (1, 2)), ("conv_post", (2,))):
        weight = state[f"{vocoder}{name}.weight"]
        weight -= weight.mean(dim=dims, keepdim=True)
    return state


def _speakers(speaker_dim: int, tokenizer: Qwen2Tokenizer, seed: int) -> dict[str, Speaker]:
    """Return by speaker: its first text token, embedding (1, speaker_dim), reference mel (1, num_frames, 80)."""
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
