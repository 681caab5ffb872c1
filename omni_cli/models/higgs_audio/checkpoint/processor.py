"""Tokenizer and processor of a Higgs Audio v2 folder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers.processors import TemplateProcessing
from transformers import DacFeatureExtractor, HiggsAudioV2Processor, PreTrainedTokenizerFast

from omni_cli.checkpoints.tokenizer import TokenSet, train_tokenizer
from omni_cli.models.higgs_audio.tokenizer import PROCESSOR, SOURCE

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
END_OF_TURN, BEGIN_AUDIO, AUDIO, DELAY = (
    "<|eot_id|>",
    "<|audio_out_bos|>",
    "<|AUDIO_OUT|>",
    "<|reserved_special_token_6|>",
)
_HEADER = ("<|start_header_id|>", "<|end_header_id|>")
_SCENE = ("<|scene_desc_start|>", "<|scene_desc_end|>")
_TOKENS = TokenSet(special=(BEGIN, END, *_HEADER, END_OF_TURN, *_SCENE, BEGIN_AUDIO, AUDIO, "<|audio_eos|>", DELAY))

# Turns as Llama's; the scene is a part of the system's, and the assistant's are sound.
CHAT_TEMPLATE = """\
{%- macro sound() -%}<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'scene' -%}
{{- '\\n\\n<|scene_desc_start|>\\n' -}}
{%- for part in message['content'] -%}
{{- part['text'] + '\\n' if part['type'] == 'text' else sound() + '\\n' -}}
{%- endfor -%}
{{- '<|scene_desc_end|>' -}}
{%- else -%}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}
{%- for part in message['content'] -%}
{{- part['text'] if part['type'] == 'text' else sound() -}}
{%- endfor -%}
{%- endif -%}
{%- if loop.last or messages[loop.index]['role'] != 'scene' -%}
{{- '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n<|audio_out_bos|>' -}}
{%- endif -%}
"""


def make_tokenizer(vocab_size: int, model_max_length: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer with `vocab_size` ids that begins each text with `BEGIN`, as the release does."""
    backend = train_tokenizer(vocab_size, model_max_length, _TOKENS).backend_tokenizer
    ids = [(BEGIN, backend.token_to_id(BEGIN))]
    backend.post_processor = TemplateProcessing(single=f"{BEGIN} $A", special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BEGIN,
        eos_token=END_OF_TURN,
        pad_token=END,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def write_processor(
    output_dir: Path, tokenizer: PreTrainedTokenizerFast, sample_rate: int, codec: str, *, begin: int, end: int
) -> None:
    """Write tokenizer, processor and chat template; the folder `codec` inside has the audio tokenizer."""
    # Recordings are not padded, as in the release.
    feature_extractor = DacFeatureExtractor(sampling_rate=sample_rate, hop_length=1)
    processor = HiggsAudioV2Processor(
        feature_extractor,
        tokenizer,
        None,
        chat_template=CHAT_TEMPLATE,
        audio_stream_bos_id=begin,
        audio_stream_eos_id=end,
    )
    processor.save_pretrained(output_dir)
    file = output_dir / PROCESSOR
    settings = json.loads(file.read_text())
    settings["audio_tokenizer"] = {"audio_tokenizer_class": "HiggsAudioV2TokenizerModel", SOURCE: codec}
    file.write_text(json.dumps(settings, indent=2) + "\n")
