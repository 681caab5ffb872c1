"""Tokenizer and processor of a VibeVoice folder."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen2Tokenizer, VibeVoiceAcousticTokenizerFeatureExtractor, VibeVoiceProcessor

from omni_cli.checkpoints.tokenizer import TokenSet, train_tokenizer

END, BEGIN_AUDIO, END_AUDIO, AUDIO = "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"
_TOKENS = TokenSet(special=(END, "<|im_start|>", "<|im_end|>", BEGIN_AUDIO, END_AUDIO, AUDIO))

# The voices of the speakers that have one, then the turns; a message's role is its speaker's number.
CHAT_TEMPLATE = """\
{{- 'Voices:\\n' -}}
{%- for message in messages -%}
{%- for part in message['content'] if part['type'] == 'audio' -%}
{{- 'Speaker ' + message['role'] + ':<|vision_start|><|vision_pad|><|vision_end|>\\n' -}}
{%- endfor -%}
{%- endfor -%}
{{- 'Text:\\n' -}}
{%- for message in messages -%}
{%- for part in message['content'] if part['type'] == 'text' -%}
{{- 'Speaker ' + message['role'] + ': ' + part['text'] + '\\n' -}}
{%- endfor -%}
{%- endfor -%}
{{- 'Speech:\\n<|vision_start|>' -}}
"""


def make_tokenizer(vocab_size: int, model_max_length: int) -> Qwen2Tokenizer:
    """Train a tokenizer with `vocab_size` ids."""
    tokenizer = train_tokenizer(vocab_size, model_max_length, _TOKENS)
    tokenizer.eos_token = END
    return tokenizer


def write_processor(output_dir: Path, tokenizer: Qwen2Tokenizer, hop_length: int) -> None:
    """Write tokenizer, processor and chat template into `output_dir`."""
    feature_extractor = VibeVoiceAcousticTokenizerFeatureExtractor(pad_to_multiple_of=hop_length)
    VibeVoiceProcessor(feature_extractor, tokenizer, chat_template=CHAT_TEMPLATE).save_pretrained(output_dir)
