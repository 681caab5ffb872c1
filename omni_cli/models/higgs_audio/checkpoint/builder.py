"""Builder of a complete Higgs Audio v2 folder of any size: language model, tokenizer, processor, and the codec."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2TokenizerConfig,
    PreTrainedTokenizerFast,
)

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.weights import random_state_dict, shape_head
from omni_cli.models.higgs_audio.checkpoint.processor import AUDIO, BEGIN_AUDIO, DELAY, make_tokenizer, write_processor
from omni_cli.models.higgs_audio.tokenizer import tokenizer_class

CODEC = "audio_tokenizer"
_SAMPLE_RATE, _SEMANTIC_RATE = 24_000, 16_000
_RATIOS = (8, 5, 4, 2, 3)  # 960 samples per frame, as in the release
_SEMANTIC_RATIO = 320

_GAINS = {
    # Sharp attention that weighs as much as the last token, so that speech depends on the whole text.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    # silu(gate) * up loses about half of the scale.
    "down_proj": 2.0,
    # Large enough that greedy choices do not depend on the last bits of a logit.
    "audio_lm_head": 3.0,
    # Those of all codebooks are summed.
    "embed_audio_tokens": 0.4,
}
_CODEC_GAINS = {
    # Less than one, or each of the 35 activations makes rounding grow.
    "acoustic_decoder.block": 0.7,
    # The last convolution: loud enough to hear and rarely clipped.
    "acoustic_decoder.conv2": 0.03,
}
# Length of the end's row in the first codebook's head: speech ends about once in a hundred frames.
_SPEECH_END_GAIN = 0.33


@dataclass(frozen=True)
class HiggsCodecSizes:
    """The codec: acoustic encoder and decoder, and the semantic model. Convolutions halve their channels five times."""

    hidden_size: int
    encoder_hidden_size: int
    decoder_hidden_size: int
    codebook_dim: int
    semantic_hidden_size: int
    semantic_intermediate_size: int
    semantic_layers: int
    semantic_heads: int
    semantic_channels: int


@dataclass(frozen=True)
class HiggsAudioSizes:
    """Sizes of a whole Higgs Audio v2. The defaults are those of `tiny-higgs-audio`.

    `codebook_size` is a power of two; each codebook of the language model has two more ids, the begin and the end.
    """

    vocab_size: int = 512
    codebook_size: int = 64
    num_codebooks: int = 8
    max_position_embeddings: int = 2048
    backbone: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    codec: HiggsCodecSizes = field(default_factory=lambda: HiggsCodecSizes(32, 4, 64, 16, 32, 64, 2, 2, 16))


def tiny_higgs_audio(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-higgs-audio`."""
    write_higgs_audio(output_dir, HiggsAudioSizes(), seed)


def write_higgs_audio(output_dir: Path, sizes: HiggsAudioSizes, seed: int) -> None:
    """Write all files that transformers' language model and codec, and vLLM, read."""
    tokenizer = make_tokenizer(sizes.vocab_size, sizes.max_position_embeddings)
    with quiet_transformers():
        config = higgs_audio_config(sizes, tokenizer)
        with torch.device("meta"):
            model = HiggsAudioV2ForConditionalGeneration(config)
        model.load_state_dict(_weights(model, sizes, seed), assign=True)
        model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
        model.save_pretrained(output_dir)
        with torch.device("meta"):
            codec = tokenizer_class()(codec_config(sizes))
        codec.load_state_dict(random_state_dict(codec, seed, prefix="codec.", gains=_CODEC_GAINS), assign=True)
        codec.save_pretrained(output_dir / CODEC)
        begin, end = config.audio_stream_bos_id, config.audio_stream_eos_id
        write_processor(output_dir, tokenizer, _SAMPLE_RATE, CODEC, begin=begin, end=end)
    make_readable(output_dir)


def higgs_audio_config(sizes: HiggsAudioSizes, tokenizer: PreTrainedTokenizerFast) -> HiggsAudioV2Config:
    """Return the language model's configuration, with all token ids inside the small vocabularies."""
    audio, begin_audio, delay = tokenizer.convert_tokens_to_ids([AUDIO, BEGIN_AUDIO, DELAY])
    return HiggsAudioV2Config(
        **sizes.backbone.config,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 0.125,
            "high_freq_factor": 0.5,
            "original_max_position_embeddings": sizes.max_position_embeddings // 2,
        },
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_position_embeddings,
        num_codebooks=sizes.num_codebooks,
        codebook_size=sizes.codebook_size + 2,
        audio_stream_bos_id=sizes.codebook_size,
        audio_stream_eos_id=sizes.codebook_size + 1,
        audio_token_id=audio,
        audio_bos_token_id=begin_audio,
        audio_delay_token_id=delay,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def codec_config(sizes: HiggsAudioSizes) -> HiggsAudioV2TokenizerConfig:
    """Return the codec's configuration, with as many quantizers as the language model has codebooks."""
    codec = sizes.codec
    bits_per_code = math.log2(sizes.codebook_size)
    bandwidth = sizes.num_codebooks * bits_per_code * _SAMPLE_RATE / math.prod(_RATIOS) / 1000
    acoustic: dict[str, Any] = {
        "hidden_size": codec.hidden_size,
        "encoder_hidden_size": codec.encoder_hidden_size,
        "decoder_hidden_size": codec.decoder_hidden_size,
        "downsampling_ratios": list(_RATIOS),
        "upsampling_ratios": list(_RATIOS),
    }
    semantic: dict[str, Any] = {
        "hidden_size": codec.semantic_hidden_size,
        "intermediate_size": codec.semantic_intermediate_size,
        "num_hidden_layers": codec.semantic_layers,
        "num_attention_heads": codec.semantic_heads,
        "conv_dim": [codec.semantic_channels] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    return HiggsAudioV2TokenizerConfig(
        acoustic_model_config=acoustic,
        semantic_model_config=semantic,
        # A little more than these quantizers take, so that rounding takes none away.
        target_bandwidths=[bandwidth * 1.01],
        sample_rate=_SAMPLE_RATE,
        semantic_sample_rate=_SEMANTIC_RATE,
        downsample_factor=_SEMANTIC_RATIO,
        codebook_size=sizes.codebook_size,
        codebook_dim=codec.codebook_dim,
        dtype="float32",
    )


def _weights(model: HiggsAudioV2ForConditionalGeneration, sizes: HiggsAudioSizes, seed: int) -> dict[str, torch.Tensor]:
    """Draw weights whose codes the codec can decode; the first codebook ends the speech now and then."""
    state = random_state_dict(model, seed, gains=_GAINS)
    begin, end = sizes.codebook_size, sizes.codebook_size + 1
    first, *others = state["audio_lm_head.weight"].chunk(sizes.num_codebooks)
    shape_head(first, never=[begin], end=end, end_gain=_SPEECH_END_GAIN)
    for head in others:
        head[[begin, end]] = 0.0
    return state
