"""Recipe of Qwen3-Omni, of any size."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import transformers

from omni_cli.checkpoints.tiny import ROPE, Checkpoint, DecoderSizes, RandomModel, State, builder
from omni_cli.checkpoints.tiny_qwen import (
    GAINS,
    EncoderSizes,
    media_processor,
    media_tokens,
    shape_heads,
    stop_ids,
    write_bpe,
)
from omni_cli.checkpoints.tokenizer import TokenSet, media_roles, split_names, train_tokenizer

_PATCH_SIZE = 16
_SECONDS = {"position_id_per_seconds": 13, "seconds_per_chunk": 2}
_CODEC_USES = ("pad", "bos", "eos_token", "nothink", "think_bos", "think_eos")
_QWEN3_GAINS = {
    **GAINS,
    "code_predictor.lm_head": 3.0,
    # As many rows as codebooks are summed or averaged, and each must be audible.
    "code2wav.code_embedding": 3.0,
    # Loud enough to hear and rarely clipped.
    "conv2.conv": 0.3,
    "code2wav.decoder.6.conv": 0.05,
}
# The release's tokens that text may contain, in its order.
QWEN3_TOKENS = TokenSet(
    special=split_names(
        "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
        "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
        "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
    ),
    plain=split_names(
        "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
        "<tool_response> </tool_response> <think> </think>"
    ),
    roles=media_roles(
        "<|image_pad|> <|audio_pad|> <|video_pad|> <|vision_start|> <|vision_end|> <|audio_start|> <|audio_end|>"
    ),
)
_QWEN3_TEXT_TOKENS = {
    **{"im_start": "<|im_start|>", "im_end": "<|im_end|>", "system": "system", "user": "user"},
    **{"assistant": "assistant", "tts_pad": "<tts_pad>", "tts_bos": "<tts_text_bos>", "tts_eos": "<tts_text_eod>"},
}
_QWEN3_TEMPLATE = """\
{%- macro shown(content) -%}
{%- if content is string -%}
{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part['type'] in ['audio', 'audio_url', 'input_audio'] -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part['type'] in ['image', 'image_url', 'input_image'] -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] in ['video', 'video_url'] -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{%- set content = shown(message['content']) -%}
{%- if message['role'] == 'assistant' and '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""


class ExpertSizes(NamedTuple):
    """The mixture of experts in a decoder's layers; `shared_size` is the width of the expert for all tokens."""

    num_experts: int
    num_per_token: int
    size: int
    shared_size: int = 0

    @property
    def config(self) -> dict[str, object]:
        return {
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_per_token,
            "moe_intermediate_size": self.size,
            "norm_topk_prob": True,
            **({"shared_expert_intermediate_size": self.shared_size} if self.shared_size else {}),
        }


class CodecSizes(NamedTuple):
    """code2wav: a transformer over frames, and convolutions, which halve `decoder_dim` four times."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    decoder_dim: int


class Qwen3OmniSizes(NamedTuple):
    """Sizes of a whole Qwen3-Omni. The defaults are those of `tiny-qwen3-omni`.

    `vocab_size` counts text tokens, including special ones; `num_codes` the codes of each of `num_code_groups`
    codebooks. The talker's rows of images, video and audio are from layer `accept_hidden_layer` of the thinker, which
    comes after the layers into which the image encoder's `deepstack` layers are fed. The code predictor's `hidden_size`
    is the talker's.
    """

    vocab_size: int = 512
    num_codes: int = 128
    num_code_groups: int = 8
    max_position_embeddings: int = 4096
    accept_hidden_layer: int = 3
    deepstack: tuple[int, ...] = (0, 1)
    thinker: DecoderSizes = DecoderSizes(128, 256, 4, 4, 2, 32)
    thinker_experts: ExpertSizes = ExpertSizes(4, 2, 64)
    talker: DecoderSizes = DecoderSizes(96, 128, 2, 4, 2, 32)
    talker_experts: ExpertSizes = ExpertSizes(4, 2, 48, shared_size=64)
    code_predictor: DecoderSizes = DecoderSizes(96, 128, 2, 4, 2, 32)
    audio: EncoderSizes = EncoderSizes(64, 128, 2, 2)
    vision: EncoderSizes = EncoderSizes(64, 128, 3, 2)
    code2wav: CodecSizes = CodecSizes(64, 128, 2, 2, 2, 64)


def qwen3_omni(sizes: Qwen3OmniSizes, tokenizer: Any = None) -> Checkpoint:
    """Qwen3-Omni; by default, with a trained tokenizer."""
    tokenizer = tokenizer or train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings, QWEN3_TOKENS)
    config = {
        "thinker_config": _qwen3_thinker(sizes, tokenizer),
        "talker_config": _qwen3_talker(sizes, tokenizer),
        "code2wav_config": {
            **sizes.code2wav._asdict(),
            "codebook_size": sizes.num_codes,
            "num_quantizers": sizes.num_code_groups,
        },
        **{f"{key}_token_id": tokenizer.convert_tokens_to_ids(token) for key, token in _QWEN3_TEXT_TOKENS.items()},
    }
    kind = transformers.Qwen3OmniMoeForConditionalGeneration
    model = RandomModel(
        kind, config, _QWEN3_GAINS, adjust=partial(_shape_qwen3, tokenizer), generation=stop_ids(tokenizer)
    )
    processor = media_processor(transformers.Qwen3OmniMoeProcessor, tokenizer, _QWEN3_TEMPLATE, patch_size=_PATCH_SIZE)
    return Checkpoint({"": model}, processor, finish=partial(write_bpe, tokenizer))


def _qwen3_thinker(sizes: Qwen3OmniSizes, tokenizer: Any) -> dict[str, object]:
    hidden_size = sizes.thinker.hidden_size
    return {
        **media_tokens(tokenizer, "token_id"),
        **_SECONDS,
        "user_token_id": tokenizer.convert_tokens_to_ids("user"),
        "text_config": _qwen3_decoder(sizes, sizes.thinker, sizes.thinker_experts, sizes.vocab_size),
        "audio_config": sizes.audio.audio_config(hidden_size, downsample_hidden_size=sizes.audio.hidden_size // 2),
        "vision_config": {
            **sizes.vision.vision_config(hidden_size),
            "deepstack_visual_indexes": list(sizes.deepstack),
            # A square, which is interpolated for other shapes of images.
            "num_position_embeddings": 8 * 8,
            # Two keys that vLLM needs, transformers does not have, and the release contains.
            "image_size": 8 * _PATCH_SIZE,
            "apply_vit_abs_pos_embed": True,
        },
    }


def _qwen3_talker(sizes: Qwen3OmniSizes, tokenizer: Any) -> dict[str, object]:
    first = sizes.num_codes
    return {
        **media_tokens(tokenizer, "token_id"),
        **_SECONDS,
        "num_code_groups": sizes.num_code_groups,
        "thinker_hidden_size": sizes.thinker.hidden_size,
        "accept_hidden_layer": sizes.accept_hidden_layer,
        "spatial_merge_size": 2,
        **{f"codec_{use}_id": first + index for index, use in enumerate(_CODEC_USES)},
        "speaker_id": {"chelsie": first + 6, "ethan": first + 7, "aiden": first + 8},
        # The reference suppresses this many ids at the end of the talker's vocabulary, of any size.
        "text_config": _qwen3_decoder(sizes, sizes.talker, sizes.talker_experts, sizes.num_codes + 1024),
        "code_predictor_config": {
            **sizes.code_predictor._asdict(),
            "vocab_size": sizes.num_codes,
            "num_code_groups": sizes.num_code_groups,
            "rope_parameters": ROPE,
        },
    }


def _qwen3_decoder(
    sizes: Qwen3OmniSizes, decoder: DecoderSizes, experts: ExpertSizes, vocab_size: int
) -> dict[str, object]:
    # Rotary pairs for time, height and width, in the release's proportions 24 : 20 : 20.
    side = decoder.head_dim * 5 // 32
    sections = [decoder.head_dim // 2 - 2 * side, side, side]
    return {
        **decoder._asdict(),
        **experts.config,
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rope_parameters": {**ROPE, "mrope_section": sections, "interleaved": True, "mrope_interleaved": True},
    }


def _shape_qwen3(tokenizer: Any, state: State, config: Any, _draw: object) -> None:
    talker = config.talker_config
    shape_heads(state, tokenizer, first_special=talker.codec_pad_id, end=talker.codec_eos_token_id)


tiny_qwen3_omni = builder(qwen3_omni, Qwen3OmniSizes())
