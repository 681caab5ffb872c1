"""The processor files of a Qwen2.5-Omni folder: chat template, audio features, images and video."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen2_5OmniProcessor, Qwen2Tokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

# One merged patch is 28 x 28 pixels and one token; the largest image is 256 tokens, to fit a small context and a slow
# machine.
_PIXELS_PER_TOKEN = 28 * 28
_PICTURE_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 256 * _PIXELS_PER_TOKEN}

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


def write_processor(output_dir: Path, tokenizer: Qwen2Tokenizer) -> None:
    """Write tokenizer, processors and chat template into `output_dir`."""
    tokenizer.chat_template = CHAT_TEMPLATE
    processor = Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(size=_PICTURE_SIZE),
        video_processor=Qwen2VLVideoProcessor(size=_PICTURE_SIZE),
        # Half a minute at most, as in Whisper; the released models take five minutes and pad everything to that.
        feature_extractor=WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=30),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(output_dir)
    # Plain BPE files next to tokenizer.json, for tools that read those.
    tokenizer.backend_tokenizer.model.save(str(output_dir))
