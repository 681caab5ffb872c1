"""Tokenizer and processor of a CSM folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers.processors import TemplateProcessing
from transformers import CsmProcessor, EncodecFeatureExtractor, PreTrainedTokenizerFast

from omni_cli.checkpoints.tokenizer import TokenSet, train_tokenizer

BEGIN, END, AUDIO, AUDIO_END = "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"
_TOKENS = TokenSet(special=(BEGIN, END, AUDIO, AUDIO_END))

# One turn per message: the speaker's number, the text, and its audio if it is known.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- bos_token + '[' + message['role'] + ']' -}}
{%- if message['content'] is string -%}
{{- message['content'] + eos_token -}}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- endfor -%}
{{- eos_token -}}
{%- for part in message['content'] if part['type'] == 'audio' -%}
{{- '<|AUDIO|><|audio_eos|>' -}}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
"""


def make_tokenizer(vocab_size: int, model_max_length: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer with `vocab_size` ids that puts each text between `BEGIN` and `END`, as the release does."""
    backend = train_tokenizer(vocab_size, model_max_length, _TOKENS).backend_tokenizer
    ids = [(token, backend.token_to_id(token)) for token in (BEGIN, END)]
    backend.post_processor = TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=AUDIO,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def write_processor(output_dir: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write tokenizer, processor and chat template into `output_dir`."""
    feature_extractor = EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000)
    CsmProcessor(feature_extractor, tokenizer, chat_template=CHAT_TEMPLATE).save_pretrained(output_dir)
