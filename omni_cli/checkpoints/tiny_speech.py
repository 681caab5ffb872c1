"""Recipes of CSM, Higgs Audio v2 and VibeVoice, of any size."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from tokenizers.processors import TemplateProcessing

from omni_cli.checkpoints.tiny import ROPE, Checkpoint, DecoderSizes, RandomModel, State, builder
from omni_cli.checkpoints.tokenizer import TokenSet, split_names, train_tokenizer
from omni_cli.checkpoints.weights import DECODER_GAINS, shape_head
from omni_cli.core.compat.torchvision import import_with_torchaudio

# One turn per message: the speaker's number, the text, and its audio if it is known.
_CSM_TEMPLATE = """\
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
_CSM_NAMES = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
_CSM_GAINS = {
    **DECODER_GAINS,
    "lm_head": 3.0,
    "codebooks_head": 3.0,
    # Eight codebooks are summed.
    "embed_audio_tokens": 0.4,
    # The last of Mimi's convolutions: loud enough to hear and rarely clipped.
    "decoder_seanet.layers.14.conv": 0.15,
}


class MimiSizes(NamedTuple):
    """Mimi. A frame is 1,920 samples, as in the release, for all sizes."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_filters: int
    codebook_dim: int
    sliding_window: int

    def config(self, codebook_size: int, num_quantizers: int) -> dict[str, int]:
        """Return the keys of a configuration."""
        return {
            **self._asdict(),
            "codebook_size": codebook_size,
            "vector_quantization_hidden_dimension": self.codebook_dim,
            "num_key_value_heads": self.num_attention_heads,
            "num_quantizers": num_quantizers,
            "upsample_groups": self.hidden_size,
        }


class CsmSizes(NamedTuple):
    """Sizes of a whole CSM. The defaults are those of `tiny-csm`.

    `codebook_size` is a power of two; each codebook's vocabulary has three more ids.
    """

    text_vocab_size: int = 512
    codebook_size: int = 64
    num_codebooks: int = 8
    backbone: DecoderSizes = DecoderSizes(128, 256, 2, 4, 2, 32)
    depth: DecoderSizes = DecoderSizes(64, 128, 2, 2, 1, 32)
    codec: MimiSizes = MimiSizes(64, 128, 2, 4, 4, 32, 25)


def csm(sizes: CsmSizes) -> Checkpoint:
    """CSM: a frame's first code from the backbone, the others from the depth decoder, and sound from Mimi."""
    tokenizer = _train_framed(sizes.text_vocab_size, _CSM_NAMES, _CSM_TEMPLATE, frame="{} $A {}", bos=0, eos=1, pad=2)
    begin, _, audio, audio_end = tokenizer.convert_tokens_to_ids(list(_CSM_NAMES))
    pad = sizes.codebook_size + 2
    shared = {"num_codebooks": sizes.num_codebooks, "vocab_size": sizes.codebook_size + 3}
    config = {
        **sizes.backbone._asdict(),
        **shared,
        "text_vocab_size": sizes.text_vocab_size,
        "bos_token_id": begin,
        "pad_token_id": audio,
        "audio_token_id": audio,
        "audio_eos_token_id": audio_end,
        "codebook_pad_token_id": pad,
        "depth_decoder_config": {
            **sizes.depth._asdict(),
            **shared,
            "backbone_hidden_size": sizes.backbone.hidden_size,
            "max_position_embeddings": sizes.num_codebooks + 1,
        },
        "codec_config": {"model_type": "mimi", **sizes.codec.config(sizes.codebook_size, sizes.num_codebooks)},
    }
    kind = transformers.CsmForConditionalGeneration
    model = RandomModel(kind, config, _CSM_GAINS, adjust=_end_csm_speech, generation={"pad_token_id": pad})
    features = transformers.EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000)
    return Checkpoint({"": model}, transformers.CsmProcessor(features, tokenizer, chat_template=_CSM_TEMPLATE))


def _end_csm_speech(state: State, config: Any, _draw: object) -> None:
    """Let the first code be the end about once in a hundred frames, and then all others, too."""
    end, never = config.codebook_eos_token_id, list(range(config.vocab_size - 3, config.vocab_size))
    shape_head(state["lm_head.weight"], never=[*never, end], end=end, end_gain=0.28)
    # A long row in one direction, to which the end column of each head responds.
    table = state["backbone_model.embed_tokens.embed_audio_tokens.weight"]
    embeddings = table.view(config.num_codebooks, config.vocab_size, config.hidden_size)
    direction = embeddings[0, end] / embeddings[0, end].norm()
    embeddings[:, end] = direction * 20.0
    # Stored under both names: transformers 5.19 does not tie them when it loads a checkpoint.
    state["depth_decoder.model.embed_tokens.weight"] = table.clone()
    heads = state["depth_decoder.codebooks_head.weight"]  # (num_codebooks - 1, hidden_size, vocab_size)
    heads[:, :, never] = 0.0
    projected = state["depth_decoder.model.inputs_embeds_projector.weight"] @ direction
    heads[:, :, end] = projected / projected.norm() * 2.0


def _train_framed(
    vocab_size: int, names: tuple[str, ...], chat_template: str, *, frame: str, bos: int, eos: int, pad: int
) -> transformers.PreTrainedTokenizerFast:
    """Train a tokenizer whose first two special `names` fill the `frame` around each text; return transformers' own."""
    length = 2048
    backend = train_tokenizer(vocab_size, length, TokenSet(special=names)).backend_tokenizer
    ends = [(token, backend.token_to_id(token)) for token in names[: frame.count("{}")]]
    backend.post_processor = TemplateProcessing(single=frame.format(*names), special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=names[bos],
        eos_token=names[eos],
        pad_token=names[pad],
        model_max_length=length,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )


# Turns as Llama's; the scene is a part of the system's, and the assistant's are sound.
_HIGGS_TEMPLATE = """\
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
_HIGGS_NAMES = split_names(
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|scene_desc_start|> "
    "<|scene_desc_end|> <|audio_out_bos|> <|AUDIO_OUT|> <|audio_eos|> <|reserved_special_token_6|>"
)
_HIGGS_CODEC_FOLDER = "audio_tokenizer"
_HIGGS_CODEC = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
_HIGGS_GAINS = {**DECODER_GAINS, "audio_lm_head": 3.0, "embed_audio_tokens": 0.4}  # the embeddings are summed
_HIGGS_CODEC_GAINS = {
    # Less than one, or each of the 35 activations makes rounding grow.
    "acoustic_decoder.block": 0.7,
    # The last convolution: loud enough to hear and rarely clipped.
    "acoustic_decoder.conv2": 0.03,
}


def higgs_audio() -> Checkpoint:
    """Higgs Audio v2: the language model, and the codec in a folder of its own."""
    codebook_size, vocab_size = 64, 512
    tokenizer = _train_framed(vocab_size, _HIGGS_NAMES, _HIGGS_TEMPLATE, frame="{} $A", bos=0, eos=4, pad=1)
    begin_audio, audio, _, delay = tokenizer.convert_tokens_to_ids(_HIGGS_NAMES[7:])
    stream = {"audio_stream_bos_id": codebook_size, "audio_stream_eos_id": codebook_size + 1}
    config = {
        **DecoderSizes(128, 256, 2, 4, 2, 32)._asdict(),
        "vocab_size": vocab_size,
        "codebook_size": codebook_size + 2,
        **stream,
        "audio_token_id": audio,
        "audio_bos_token_id": begin_audio,
        "audio_delay_token_id": delay,
        "bos_token_id": tokenizer.bos_token_id,
    }
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    kind = transformers.HiggsAudioV2ForConditionalGeneration
    model = RandomModel(kind, {**config, **ends}, _HIGGS_GAINS, adjust=_end_higgs_speech, generation=ends)
    kind, config = import_with_torchaudio(_HIGGS_CODEC).HiggsAudioV2TokenizerModel, _higgs_codec(codebook_size)
    codec = RandomModel(kind, config, _HIGGS_CODEC_GAINS, stream="codec.")
    processor = transformers.HiggsAudioV2Processor(
        # Recordings are not padded, as in the release.
        transformers.DacFeatureExtractor(sampling_rate=24_000, hop_length=1),
        tokenizer,
        None,
        chat_template=_HIGGS_TEMPLATE,
        **stream,
    )
    return Checkpoint({"": model, _HIGGS_CODEC_FOLDER: codec}, processor, finish=_name_higgs_codec)


def _end_higgs_speech(state: State, config: Any, _draw: object) -> None:
    """Let the first codebook's code be the end about once in a hundred frames."""
    begin, end = config.audio_stream_bos_id, config.audio_stream_eos_id
    first, *others = state["audio_lm_head.weight"].chunk(config.num_codebooks)
    shape_head(first, never=[begin], end=end, end_gain=0.33)
    for head in others:
        head[[begin, end]] = 0.0


def _name_higgs_codec(folder: Path, _seed: int) -> None:
    file, codec = folder / "processor_config.json", "HiggsAudioV2TokenizerModel"
    settings = json.loads(file.read_text())
    settings["audio_tokenizer"] = {"audio_tokenizer_class": codec, "audio_tokenizer_name_or_path": _HIGGS_CODEC_FOLDER}
    file.write_text(json.dumps(settings, indent=2) + "\n")


def _higgs_codec(codebook_size: int) -> dict[str, Any]:
    """Return the configuration of the codec: acoustic encoder and decoder, and the semantic model."""
    ratios, sample_rate = [8, 5, 4, 2, 3], 24_000  # 960 samples per frame, as in the release
    bandwidth = 8 * math.log2(codebook_size) * sample_rate / math.prod(ratios) / 1000
    acoustic = dict(hidden_size=32, encoder_hidden_size=4, decoder_hidden_size=64)
    semantic = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    positions = dict(num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)
    return {
        "acoustic_model_config": dict(acoustic, downsampling_ratios=ratios, upsampling_ratios=ratios),
        "semantic_model_config": dict(semantic, conv_dim=[16] * 7, **positions),
        # A little more than 8 quantizers take, so that rounding takes none away.
        "target_bandwidths": [bandwidth * 1.01],
        "codebook_size": codebook_size,
        "codebook_dim": 16,
    }


# The voices of the speakers that have one, then the turns; a message's role is its speaker's number.
_VIBEVOICE_TEMPLATE = """\
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
_VIBEVOICE_NAMES = split_names("<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|vision_pad|>")
_VIBEVOICE_GAINS = {
    **DECODER_GAINS,
    # What a step's sound adds to the next input: less than one, or rounding grows by a third in every step.
    "multi_modal_projector.linear_2.weight": 0.1,
    "semantic_connector.linear_2.weight": 0.1,
    # The last convolution: loud enough to hear and rarely clipped.
    "audio_tower.decoder.head.conv": 0.04,
}


class VibeVoiceSizes(NamedTuple):
    """Sizes of VibeVoice. The defaults are `tiny-vibevoice`'s. With a larger `audio_logit`, speech does not end."""

    vocab_size: int = 512
    max_position_embeddings: int = 4096
    backbone: DecoderSizes = DecoderSizes(128, 256, 2, 4, 2, 32)
    acoustic_size: int = 16
    semantic_size: int = 24
    num_filters: int = 4
    num_diffusion_steps: int = 4
    audio_logit: float = 0.08


def vibevoice(sizes: VibeVoiceSizes) -> Checkpoint:
    """VibeVoice, with the release's 3,200 samples per latent."""
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings, TokenSet(special=_VIBEVOICE_NAMES))
    tokenizer.eos_token = _VIBEVOICE_NAMES[0]
    end, _, _, begin_audio, end_audio, audio = tokenizer.convert_tokens_to_ids(list(_VIBEVOICE_NAMES))
    ratios, ends = [2, 2, 4, 5, 5, 8], {"pad_token_id": end, "eos_token_id": end}
    codec = {"downsampling_ratios": ratios, "depths": [1] * (len(ratios) + 1), "num_filters": sizes.num_filters}
    config = {
        "text_config": {
            **sizes.backbone.config_of_whole_heads,
            "vocab_size": sizes.vocab_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "rope_parameters": ROPE,
        },
        "audio_config": {**codec, "hidden_size": sizes.acoustic_size},
        "semantic_model_config": {**codec, "hidden_size": sizes.semantic_size},
        "diffusion_head_config": {
            "hidden_size": sizes.backbone.hidden_size,
            "latent_size": sizes.acoustic_size,
            "num_hidden_layers": 2,
            "intermediate_size": sizes.backbone.intermediate_size,
            "frequency_embedding_size": 32,
        },
        **ends,
        "audio_bos_token_id": begin_audio,
        "audio_eos_token_id": end_audio,
        "audio_token_id": audio,
    }
    generation = {
        **ends,
        "noise_scheduler_class": "DPMSolverMultistepScheduler",
        "noise_scheduler_config": {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
        "guidance_scale": 1.3,
        "num_diffusion_steps": sizes.num_diffusion_steps,
    }
    kind = transformers.VibeVoiceForConditionalGeneration
    end_speech = partial(_end_vibevoice_speech, sizes.audio_logit)
    model = RandomModel(kind, config, _VIBEVOICE_GAINS, adjust=end_speech, generation=generation)
    features = transformers.VibeVoiceAcousticTokenizerFeatureExtractor(pad_to_multiple_of=math.prod(ratios))
    processor = transformers.VibeVoiceProcessor(features, tokenizer, chat_template=_VIBEVOICE_TEMPLATE)
    return Checkpoint({"": model}, processor)


def _end_vibevoice_speech(audio_logit: float, state: State, config: Any, draw: Any) -> None:
    """Give every input a common direction, along which the head of the token that becomes sound is longer."""
    hidden_size = config.text_config.hidden_size
    common = draw("common direction", (hidden_size,))
    state["model.language_model.embed_tokens.weight"] += common
    state["model.multi_modal_projector.linear_2.bias"] += common
    head = state["lm_head.weight"]
    head[[config.eos_token_id, config.audio_bos_token_id, config.audio_eos_token_id]] *= 1.6
    head[config.audio_token_id] += audio_logit * math.sqrt(128 / hidden_size) * common


tiny_csm = builder(csm, CsmSizes())
tiny_higgs_audio = builder(higgs_audio)
tiny_vibevoice = builder(vibevoice, VibeVoiceSizes())
