"""The chat template of a Qwen2.5-Omni folder."""

from __future__ import annotations

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
