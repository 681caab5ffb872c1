"""Builder parts that all checkpoints with a thinker and a talker share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel, ProcessorMixin, Qwen2Tokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from omni_cli.checkpoints.tokenizer import unreadable_token_ids
from omni_cli.checkpoints.weights import Draw, random_state_dict, shape_head

_GAINS = {
    # Sharp attention that weighs as much as the last token: answers depend on the whole prompt, and codes do not fall
    # into a short cycle at the end of the text.
    "q_proj": 2.5,
    "k_proj": 2.5,
    "o_proj": 2.0,
    # silu(gate) * up loses about half of the scale.
    "down_proj": 2.0,
    # Large enough that greedy choices do not depend on the last bits of a logit.
    "thinker.lm_head": 3.0,
    "talker.codec_head": 3.0,
}
# Lengths of the end tokens' rows: text ends about once in a hundred steps, speech less often.
_TEXT_END_GAIN = 0.34
_CODEC_END_GAIN = 0.28


def speech_state_dict(
    model: PreTrainedModel,
    tokenizer: Qwen2Tokenizer,
    seed: int,
    *,
    first_special: int,
    end: int,
    gains: Mapping[str, float],
    draw: Draw,
) -> dict[str, torch.Tensor]:
    """Draw weights whose outputs are readable tokens and codes, with an occasional end.

    From `first_special` on, the talker's ids are not codes; `end` is the one that ends speech. `gains` are added to
    those of all models.
    """
    state = random_state_dict(model, seed, gains={**_GAINS, **gains}, draw=draw)
    text, codes = state["thinker.lm_head.weight"], state["talker.codec_head.weight"]
    unused = range(len(tokenizer), len(text))
    shape_head(
        text,
        never=[*unreadable_token_ids(tokenizer), *unused],
        end=tokenizer.eos_token_id,
        end_gain=_TEXT_END_GAIN,
    )
    shape_head(codes, never=list(range(first_special, len(codes))), end=end, end_gain=_CODEC_END_GAIN)
    return state


def media_token_keys(tokenizer: Qwen2Tokenizer, suffix: str, *, position_id_per_seconds: int) -> dict[str, int]:
    """Return the keys of media that thinker and talker share; `suffix` ends the names of the placeholders' ids."""
    return {
        **{f"{medium}_{suffix}": getattr(tokenizer, f"{medium}_token_id") for medium in ("audio", "image", "video")},
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "audio_end_token_id": tokenizer.audio_eos_token_id,
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
        "position_id_per_seconds": position_id_per_seconds,
        "seconds_per_chunk": 2,
    }


def save_model(
    output_dir: Path, model: PreTrainedModel, state: Mapping[str, torch.Tensor], tokenizer: Qwen2Tokenizer
) -> None:
    """Write the model, which is on the meta device, with the weights `state`."""
    model.load_state_dict(state, assign=True)
    # vLLM and `generate` stop at this token.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(output_dir)


def write_processor(
    output_dir: Path, tokenizer: Qwen2Tokenizer, kind: type[ProcessorMixin], chat_template: str, *, patch_size: int
) -> None:
    """Write tokenizer, chat template and processors of audio features, images and video into `output_dir`.

    One merged patch is one token; the largest image is 256 tokens, to fit a small context and a slow machine.
    """
    token_pixels = (2 * patch_size) ** 2
    size = {"shortest_edge": 4 * token_pixels, "longest_edge": 256 * token_pixels}
    tokenizer.chat_template = chat_template
    processor = kind(
        image_processor=Qwen2VLImageProcessor(size=size, patch_size=patch_size),
        video_processor=Qwen2VLVideoProcessor(size=size, patch_size=patch_size),
        # Half a minute, as in Whisper; the released models pad everything to five minutes.
        feature_extractor=WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=30),
        tokenizer=tokenizer,
        chat_template=chat_template,
    )
    processor.save_pretrained(output_dir)
    # Plain BPE files beside tokenizer.json, as in the releases, for tools that read those.
    tokenizer.backend_tokenizer.model.save(str(output_dir))
