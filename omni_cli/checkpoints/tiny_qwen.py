"""Recipe of Qwen2.5-Omni, of any size, and what it shares with that of Qwen3-Omni."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from omni_cli.checkpoints.tiny import Checkpoint, DecoderSizes, RandomModel, State, builder
from omni_cli.checkpoints.tokenizer import train_tokenizer, unreadable_token_ids
from omni_cli.checkpoints.weights import DECODER_GAINS, normal_tensor, shape_head

GAINS = {**DECODER_GAINS, "thinker.lm_head": 3.0, "talker.codec_head": 3.0}
_QWEN2_5_GAINS = {
    **GAINS,
    # Loud enough to hear and rarely clipped, for any number of channels.
    "bigvgan_model.resblocks": 0.3,
    "conv_post": 0.12,
    # Codes and mel frames must be audible over the vocoder's own hum.
    "codec_embed": 3.0,
    "dit_model.proj_out": 2.0,
    "conv_pre": 4.0,
}
_MEL_DIM = 80

_QWEN2_5_TEMPLATE = """\
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


class EncoderSizes(NamedTuple):
    """The audio or the vision encoder in front of a thinker."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int

    def audio_config(self, output_dim: int, **more: object) -> dict[str, object]:
        """Return the keys of an audio encoder's configuration."""
        keys = ("d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads")
        return {**dict(zip(keys, self, strict=True)), "output_dim": output_dim, **more}

    def vision_config(self, output_dim: int, **more: object) -> dict[str, object]:
        """Return the keys of a vision encoder's configuration."""
        keys = ("hidden_size", "intermediate_size", "depth", "num_heads")
        return {**dict(zip(keys, self, strict=True)), "out_hidden_size": output_dim, **more}


class VocoderSizes(NamedTuple):
    """token2wav: a diffusion transformer from codes to mel frames, and BigVGAN from mel frames to samples.

    BigVGAN halves `upsample_initial_channel` six times, so it must be a multiple of 64.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    speaker_dim: int
    upsample_initial_channel: int


class OmniSizes(NamedTuple):
    """Sizes of a whole Qwen2.5-Omni. The defaults are those of `tiny-omni`.

    `vocab_size` counts text tokens, including special ones; `num_codes` the audio codes, to which the talker's
    vocabulary adds a few special ones. The thinker's `hidden_size` is that of its heads together.
    """

    vocab_size: int = 512
    num_codes: int = 256
    max_position_embeddings: int = 4096
    thinker: DecoderSizes = DecoderSizes(128, 256, 2, 4, 2, 32)
    talker: DecoderSizes = DecoderSizes(128, 256, 2, 4, 2, 32)
    audio: EncoderSizes = EncoderSizes(64, 128, 2, 2)
    vision: EncoderSizes = EncoderSizes(64, 128, 2, 2)
    token2wav: VocoderSizes = VocoderSizes(64, 2, 2, 32, 32, 64)


SMALL_SIZES = OmniSizes(
    vocab_size=8192,
    num_codes=1024,
    thinker=DecoderSizes(640, 2560, 8, 10, 2, 64),
    talker=DecoderSizes(512, 2048, 6, 8, 2, 64),
    audio=EncoderSizes(256, 1024, 3, 4),
    vision=EncoderSizes(256, 512, 4, 4),
    token2wav=VocoderSizes(256, 6, 4, 64, 64, 256),
)


def qwen2_5_omni(sizes: OmniSizes, tokenizer: Any = None) -> Checkpoint:
    """Qwen2.5-Omni; by default, with a trained tokenizer."""
    tokenizer = tokenizer or train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings)
    ends = stop_ids(tokenizer)
    config = {
        "thinker_config": _qwen2_5_thinker(sizes, tokenizer),
        "talker_config": _qwen2_5_talker(sizes, tokenizer),
        "token2wav_config": _token2wav(sizes.token2wav, num_embeds=_talker_vocab_size(sizes) - 1),
    }
    kind = transformers.Qwen2_5OmniForConditionalGeneration
    model = RandomModel(kind, config, _QWEN2_5_GAINS, adjust=partial(_shape_qwen2_5, tokenizer), generation=ends)
    processor = media_processor(transformers.Qwen2_5OmniProcessor, tokenizer, _QWEN2_5_TEMPLATE, patch_size=14)
    return Checkpoint({"": model}, processor, finish=partial(_finish_qwen2_5, tokenizer))


def _qwen2_5_thinker(sizes: OmniSizes, tokenizer: Any) -> dict[str, object]:
    thinker, starts_and_ends = sizes.thinker, {**stop_ids(tokenizer), "bos_token_id": tokenizer.pad_token_id}
    return {
        **media_tokens(tokenizer, "token_index"),
        **starts_and_ends,
        "vision_token_id": tokenizer.convert_tokens_to_ids("<|vision_pad|>"),
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "text_config": {
            **thinker.config_of_whole_heads,
            **starts_and_ends,
            "vocab_size": sizes.vocab_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": thinker.mrope,
            "tie_word_embeddings": False,
        },
        "audio_config": sizes.audio.audio_config(thinker.hidden_size),
        # Windowed attention in all layers except the last, like the released models' groups of eight.
        "vision_config": sizes.vision.vision_config(
            thinker.hidden_size, fullatt_block_indexes=[sizes.vision.num_layers - 1]
        ),
    }


def _qwen2_5_talker(sizes: OmniSizes, tokenizer: Any) -> dict[str, object]:
    token_id, first = tokenizer.convert_tokens_to_ids, sizes.num_codes
    return {
        **media_tokens(tokenizer, "token_index"),
        **sizes.talker._asdict(),
        "vocab_size": _talker_vocab_size(sizes),
        "tts_text_pad_token_id": token_id("<|tts_pad|>"),
        "tts_text_start_token_id": token_id("<|tts_bos|>"),
        "tts_text_end_token_id": token_id("<|tts_eos|>"),
        **{f"tts_codec_{use}_token_id": first + index for index, use in enumerate(("pad", "start", "end", "mask"))},
        "embedding_size": sizes.thinker.hidden_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rope_parameters": sizes.talker.mrope,
    }


def _talker_vocab_size(sizes: OmniSizes) -> int:
    """Return the codes plus four special tokens, padded to a multiple of 64 for vLLM's vocabulary shards."""
    return math.ceil((sizes.num_codes + 4) / 64) * 64


def _token2wav(sizes: VocoderSizes, num_embeds: int) -> dict[str, object]:
    channels = sizes.hidden_size // 2
    return {
        "dit_config": {
            "hidden_size": sizes.hidden_size,
            "num_hidden_layers": sizes.num_hidden_layers,
            "num_attention_heads": sizes.num_attention_heads,
            "head_dim": sizes.head_dim,
            "emb_dim": sizes.hidden_size,
            "look_ahead_layers": [sizes.num_hidden_layers // 2],
            "look_backward_layers": [0, sizes.num_hidden_layers - 1],
            # One row per id that the talker can emit, so that every sampled token is in range.
            "num_embeds": num_embeds,
            "enc_emb_dim": sizes.speaker_dim,
            "enc_dim": sizes.speaker_dim,
            "enc_channels": [*[channels] * 4, 3 * channels],
            "enc_attention_channels": channels // 2,
            "enc_se_channels": channels // 2,
        },
        "bigvgan_config": {"upsample_initial_channel": sizes.upsample_initial_channel},
    }


def _shape_qwen2_5(tokenizer: Any, state: State, config: Any, _draw: object) -> None:
    talker = config.talker_config
    # Released talkers have unused ids between token2wav's codes and the special tokens.
    first_special = min(talker.tts_codec_pad_token_id, config.token2wav_config.dit_config.num_embeds - 1)
    shape_heads(state, tokenizer, first_special=first_special, end=talker.tts_codec_end_token_id)
    # Taps that sum to zero, so that the vocoder follows changes of the mel frames without a constant offset.
    for name, dims in (("conv_pre", (1, 2)), ("conv_post", (2,))):
        weight = state[f"token2wav.code2wav_bigvgan_model.{name}.weight"]
        weight -= weight.mean(dim=dims, keepdim=True)


def _finish_qwen2_5(tokenizer: Any, folder: Path, seed: int) -> None:
    """Name the architecture as the releases do, and write the speakers.

    A speaker has a first text token, an embedding (1, speaker_dim), and a reference mel (1, num_frames, 80).
    """
    write_bpe(tokenizer, folder, seed)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["architectures"] = ["Qwen2_5OmniModel"]
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    speaker_dim = config["token2wav_config"]["dit_config"]["enc_emb_dim"]
    speakers = {
        name: {
            "bos_token": tokenizer.convert_tokens_to_ids(f"<|tts_bos_{name.lower()}|>"),
            "cond": normal_tensor(f"speakers.{name}.cond", (1, speaker_dim), 0.0, 1.0, seed),
            "ref_mel": normal_tensor(f"speakers.{name}.ref_mel", (1, 96, _MEL_DIM), -4.0, 2.0, seed),
        }
        for name in ("Chelsie", "Ethan")
    }
    torch.save(speakers, folder / "spk_dict.pt")


def stop_ids(tokenizer: Any) -> dict[str, int]:
    return {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}


def media_tokens(tokenizer: Any, suffix: str) -> dict[str, int]:
    """Return the keys of media that thinker and talker share; `suffix` ends the names of the placeholders' ids."""
    return {
        **{f"{medium}_{suffix}": getattr(tokenizer, f"{medium}_token_id") for medium in ("audio", "image", "video")},
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "audio_end_token_id": tokenizer.audio_eos_token_id,
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
    }


def media_processor(kind: Any, tokenizer: Any, chat_template: str, *, patch_size: int) -> Any:
    """Return a processor of audio features, images and video.

    One merged patch is one token; the largest image is 256 tokens, to fit a small context and a slow machine.
    """
    token_pixels = (2 * patch_size) ** 2
    size = {"shortest_edge": 4 * token_pixels, "longest_edge": 256 * token_pixels}
    tokenizer.chat_template = chat_template
    return kind(
        image_processor=Qwen2VLImageProcessor(size=size, patch_size=patch_size),
        video_processor=Qwen2VLVideoProcessor(size=size, patch_size=patch_size),
        # Half a minute, as in Whisper; the released models pad everything to five minutes.
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=30),
        tokenizer=tokenizer,
        chat_template=chat_template,
    )


def shape_heads(state: State, tokenizer: Any, *, first_special: int, end: int) -> None:
    """Let the thinker choose readable tokens, and the talker codes below `first_special` until the `end`.

    Text ends about once in a hundred steps, speech less often.
    """
    text, codes = state["thinker.lm_head.weight"], state["talker.codec_head.weight"]
    never = [*unreadable_token_ids(tokenizer), *range(len(tokenizer), len(text))]
    shape_head(text, never=never, end=tokenizer.eos_token_id, end_gain=0.34)
    shape_head(codes, never=list(range(first_special, len(codes))), end=end, end_gain=0.28)


def write_bpe(tokenizer: Any, folder: Path, seed: int) -> None:
    """Write plain BPE files beside tokenizer.json, as in the releases, for tools that read those; no `seed` matters."""
    tokenizer.backend_tokenizer.model.save(str(folder))


tiny_omni = builder(qwen2_5_omni, OmniSizes())
small_omni = builder(qwen2_5_omni, SMALL_SIZES)
