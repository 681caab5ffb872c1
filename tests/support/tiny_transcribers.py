"""Small checkpoints with random weights of the architectures that vLLM transcribes with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from support.tiny_models import conditional, make_tokenizer, template_of

_ENCODER = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64}


def glm_asr(folder: Path) -> Path:
    special = ["<|begin_of_audio|>", "<|end_of_audio|>"]
    tokenizer = make_tokenizer(special, template=template_of(audio="<|begin_of_audio|><|pad|><|end_of_audio|>"))
    config: dict[str, Any] = {
        "text_config": {"model_type": "llama"},
        # Four frames are one of the projector.
        "audio_config": {**_ENCODER, "intermediate_size": 256},
        "audio_token_id": tokenizer.pad_token_id,
    }
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    return conditional(folder, "GlmAsr", tokenizer, config, {"feature_extractor": extractor}, std=0.3)


BUILDERS: dict[str, Callable[[Path], Path]] = {builder.__name__: builder for builder in (glm_asr,)}
