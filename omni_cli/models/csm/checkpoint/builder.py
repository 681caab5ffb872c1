"""Builder of a complete CSM folder of any size: configuration, weights, tokenizer and processor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import CsmConfig, CsmForConditionalGeneration, GenerationConfig, PreTrainedTokenizerFast

from omni_cli.checkpoints.output_files import make_readable, quiet_transformers
from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.checkpoints.weights import random_state_dict, shape_head
from omni_cli.models.csm.checkpoint.processor import AUDIO, AUDIO_END, make_tokenizer, write_processor

# The id of all codebooks in the frame after the last.
END_OF_SPEECH = 0
_ROPE = {"rope_type": "default", "rope_theta": 500_000.0}

_GAINS = {
    # Sharp attention that weighs as much as the last token, so that speech depends on the whole text.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    # silu(gate) * up loses about half of the scale.
    "down_proj": 2.0,
    # Large enough that greedy choices do not depend on the last bits of a logit.
    "lm_head": 3.0,
    "codebooks_head": 3.0,
    # Eight codebooks are summed.
    "embed_audio_tokens": 0.4,
    # The last of Mimi's convolutions: loud enough to hear and rarely clipped.
    "decoder_seanet.layers.14.conv": 0.15,
}
# Length of the end token's row in the backbone's head: speech ends about once in a hundred frames.
_SPEECH_END_GAIN = 0.28
# If the first code of a frame is the end, all others are: lengths of its embedding and of its columns in the heads.
_END_EMBEDDING_NORM, _END_COLUMN_NORM = 20.0, 2.0


@dataclass(frozen=True)
class MimiSizes:
    """Mimi. A frame is 1,920 samples, as in the release, for all sizes."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_filters: int
    codebook_dim: int
    sliding_window: int


@dataclass(frozen=True)
class CsmSizes:
    """Sizes of a whole CSM. The defaults are those of `tiny-csm`.

    `codebook_size` is a power of two; each codebook's vocabulary has three more ids.
    """

    text_vocab_size: int = 512
    codebook_size: int = 64
    num_codebooks: int = 8
    max_position_embeddings: int = 2048
    backbone: DecoderSizes = field(default_factory=lambda: DecoderSizes(128, 256, 2, 4, 2, 32))
    depth: DecoderSizes = field(default_factory=lambda: DecoderSizes(64, 128, 2, 2, 1, 32))
    codec: MimiSizes = field(default_factory=lambda: MimiSizes(64, 128, 2, 4, 4, 32, 25))


def tiny_csm(output_dir: Path, seed: int) -> None:
    """Write `builtin:tiny-csm`."""
    write_csm(output_dir, CsmSizes(), seed)


def write_csm(output_dir: Path, sizes: CsmSizes, seed: int) -> None:
    """Write all files that `CsmForConditionalGeneration.from_pretrained` and vLLM read."""
    tokenizer = make_tokenizer(sizes.text_vocab_size, sizes.max_position_embeddings)
    with quiet_transformers():
        config = csm_config(sizes, tokenizer)
        with torch.device("meta"):
            model = CsmForConditionalGeneration(config)
        model.load_state_dict(_weights(model, sizes, seed), assign=True)
        model.generation_config = GenerationConfig(pad_token_id=config.codebook_pad_token_id)
        model.depth_decoder.generation_config = GenerationConfig()
        model.save_pretrained(output_dir)
        write_processor(output_dir, tokenizer)
    make_readable(output_dir)


def csm_config(sizes: CsmSizes, tokenizer: PreTrainedTokenizerFast) -> CsmConfig:
    """Return the configuration, with all token ids inside the small vocabularies."""
    vocab_size, codec = sizes.codebook_size + 3, sizes.codec
    return CsmConfig(
        **sizes.backbone.config,
        rope_parameters=_ROPE,
        num_codebooks=sizes.num_codebooks,
        vocab_size=vocab_size,
        text_vocab_size=sizes.text_vocab_size,
        max_position_embeddings=sizes.max_position_embeddings,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        audio_token_id=tokenizer.convert_tokens_to_ids(AUDIO),
        audio_eos_token_id=tokenizer.convert_tokens_to_ids(AUDIO_END),
        codebook_pad_token_id=vocab_size - 1,
        codebook_eos_token_id=END_OF_SPEECH,
        depth_decoder_config={
            **sizes.depth.config,
            "rope_parameters": _ROPE,
            "num_codebooks": sizes.num_codebooks,
            "backbone_hidden_size": sizes.backbone.hidden_size,
            "vocab_size": vocab_size,
            "max_position_embeddings": sizes.num_codebooks + 1,
        },
        codec_config={
            "model_type": "mimi",
            "hidden_size": codec.hidden_size,
            "num_filters": codec.num_filters,
            "codebook_size": sizes.codebook_size,
            "codebook_dim": codec.codebook_dim,
            "vector_quantization_hidden_dimension": codec.codebook_dim,
            "num_quantizers": sizes.num_codebooks,
            "upsample_groups": codec.hidden_size,
            "intermediate_size": codec.intermediate_size,
            "num_hidden_layers": codec.num_hidden_layers,
            "num_attention_heads": codec.num_attention_heads,
            "num_key_value_heads": codec.num_attention_heads,
            "sliding_window": codec.sliding_window,
        },
        dtype="float32",
    )


def _weights(model: CsmForConditionalGeneration, sizes: CsmSizes, seed: int) -> dict[str, torch.Tensor]:
    """Draw weights whose codes Mimi can decode, with an occasional frame of end ids."""
    state = random_state_dict(model, seed, gains=_GAINS)
    vocab_size = sizes.codebook_size + 3
    unknown = list(range(sizes.codebook_size, vocab_size))
    never = [*unknown, END_OF_SPEECH]
    shape_head(state["lm_head.weight"], never=never, end=END_OF_SPEECH, end_gain=_SPEECH_END_GAIN)
    # A long row in one direction, to which the end column of each head responds.
    table = state["backbone_model.embed_tokens.embed_audio_tokens.weight"]
    embeddings = table.view(sizes.num_codebooks, vocab_size, sizes.backbone.hidden_size)
    direction = embeddings[0, END_OF_SPEECH] / embeddings[0, END_OF_SPEECH].norm()
    embeddings[:, END_OF_SPEECH] = direction * _END_EMBEDDING_NORM
    # Stored under both names: transformers 5.19 does not tie them when it loads a checkpoint.
    state["depth_decoder.model.embed_tokens.weight"] = table.clone()
    heads = state["depth_decoder.codebooks_head.weight"]  # (num_codebooks - 1, hidden_size, vocab_size)
    heads[:, :, unknown] = 0.0
    projected = state["depth_decoder.model.inputs_embeds_projector.weight"] @ direction
    heads[:, :, END_OF_SPEECH] = projected / projected.norm() * _END_COLUMN_NORM
    return state
