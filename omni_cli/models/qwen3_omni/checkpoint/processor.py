"""Tokens, chat template and processors of a Qwen3-Omni folder: audio features, images and video."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen2Tokenizer, Qwen3OmniMoeProcessor, WhisperFeatureExtractor
from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from omni_cli.checkpoints.tokenizer import TokenSet

# Those of the release that text may contain, and in its order.
TOKENS = TokenSet(
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|object_ref_start|>",
        "<|object_ref_end|>",
        "<|box_start|>",
        "<|box_end|>",
        "<|quad_start|>",
        "<|quad_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|audio_start|>",
        "<|audio_end|>",
        "<tts_pad>",
        "<tts_text_bos>",
        "<tts_text_eod>",
        "<tts_text_bos_single>",
        "<|audio_pad|>",
    ),
    plain=(
        "<tool_call>",
        "</tool_call>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    ),
    roles={
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    },
)

# One merged patch is 32 x 32 pixels and one token; the largest image is 256 tokens, to fit a small context and a slow
# machine.
PATCH_SIZE = 16
_PIXELS_PER_TOKEN = (2 * PATCH_SIZE) ** 2
_IMAGE_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 256 * _PIXELS_PER_TOKEN}

CHAT_TEMPLATE = """\
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


def write_processor(output_dir: Path, tokenizer: Qwen2Tokenizer) -> None:
    """Write tokenizer, processors and chat template into `output_dir`."""
    tokenizer.chat_template = CHAT_TEMPLATE
    processor = Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(size=_IMAGE_SIZE, patch_size=PATCH_SIZE),
        video_processor=Qwen2VLVideoProcessor(size=_IMAGE_SIZE, patch_size=PATCH_SIZE),
        # Half a minute at most, as in Whisper; the released models take five minutes and pad everything to that.
        feature_extractor=WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=30),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(output_dir)
    # Plain BPE files next to tokenizer.json, as in the release, for tools that read those.
    tokenizer.backend_tokenizer.model.save(str(output_dir))
