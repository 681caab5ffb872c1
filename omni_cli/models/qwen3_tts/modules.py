"""The configurations of a checkpoint, which transformers does not know, and modules that they describe.

The 12 Hz tokenizer's decoder is made of parts of Qwen3-Omni's code2wav and of Mimi in transformers.
"""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import AutoConfig, MimiConfig, PreTrainedConfig, Qwen3Config, Qwen3OmniMoeCode2Wav
from transformers.models.mimi.modeling_mimi import MimiEuclideanCodebook, MimiSplitResidualVectorQuantizer
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
    Qwen3OmniMoeTalkerCodePredictorConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeTalkerResizeMLP,
)

# Parts of a quantizer's names: in a checkpoint, and in transformers' Mimi.
_QUANTIZER_NAMES = (
    ("rvq_first.", "semantic_residual_vector_quantizer."),
    ("rvq_rest.", "acoustic_residual_vector_quantizer."),
    (".vq.layers.", ".layers."),
    ("._codebook.", ".codebook."),
    (".embedding_sum", ".embed_sum"),
)


class ConfigOfParts(PreTrainedConfig):
    """A configuration with those of `sub_configs` as objects, the first of which vLLM plans by."""

    def __post_init__(self, **settings: Any) -> None:
        for name, kind in self.sub_configs.items():
            own = getattr(self, name) or {}
            setattr(self, name, own if isinstance(own, PreTrainedConfig) else kind(**own))
        super().__post_init__(**settings)

    def get_text_config(self, *_: object, **__: object) -> Any:
        return getattr(self, next(iter(self.sub_configs)))


class Qwen3TTSTalkerConfig(ConfigOfParts, Qwen3Config):
    """The talker's decoder, with the code predictor's configuration, and the ids of codec tokens."""

    model_type = "qwen3_tts_talker"
    sub_configs: ClassVar[dict[str, Any]] = {"code_predictor_config": Qwen3OmniMoeTalkerCodePredictorConfig}

    code_predictor_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **settings: Any) -> None:
        # Its positions are equal in all sections of M-RoPE, which is an ordinary rotary embedding then.
        scaling = settings.pop("rope_scaling", None) or getattr(self, "rope_parameters", None) or {}
        self.rope_parameters = {key: value for key, value in scaling.items() if key == "rope_theta"}
        super().__post_init__(**settings)

    def get_text_config(self, *_: object, **__: object) -> Any:
        return self


class Qwen3TTSConfig(ConfigOfParts):
    """A whole checkpoint without its speech tokenizer."""

    model_type = "qwen3_tts"
    sub_configs: ClassVar[dict[str, Any]] = {"talker_config": Qwen3TTSTalkerConfig}

    talker_config: dict[str, Any] | PreTrainedConfig | None = None


class SpeechTokenizerConfig(ConfigOfParts):
    """The config.json of a checkpoint's `speech_tokenizer` folder."""

    model_type = "qwen3_tts_tokenizer_12hz"
    sub_configs: ClassVar[dict[str, Any]] = {"decoder_config": Qwen3OmniMoeCode2WavConfig, "encoder_config": MimiConfig}

    decoder_config: dict[str, Any] | PreTrainedConfig | None = None
    encoder_config: dict[str, Any] | PreTrainedConfig | None = None
    encoder_valid_num_quantizers: int = 16
    input_sample_rate: int = 24_000
    output_sample_rate: int = 24_000


for kind in (Qwen3TTSConfig, SpeechTokenizerConfig):
    AutoConfig.register(kind.model_type, kind, exist_ok=True)


def make_text_projection(text_width: int, width: int, activation: str = "silu") -> nn.Module:
    """Create what projects text embeddings to the talker's width."""
    sizes = SimpleNamespace(intermediate_size=text_width, hidden_size=width, hidden_act=activation)
    own = SimpleNamespace(thinker_hidden_size=text_width, text_config=sizes)
    projection: nn.Module = Qwen3OmniMoeTalkerResizeMLP(own)
    return projection


def rename(name: str, *, to_checkpoint: bool = False) -> str:
    """Return the name here of a weight of a checkpoint's decoder, or the other way round."""
    for theirs, ours in _QUANTIZER_NAMES if name.startswith(("quantizer.", "decoder.quantizer.")) else ():
        name = name.replace(ours, theirs) if to_checkpoint else name.replace(theirs, ours)
    return name


class SpeechDecoder(Qwen3OmniMoeCode2Wav):
    """Samples (batch, 1, num_samples) of codes (batch, num_codebooks, num_frames); every part of it is causal."""

    def __init__(self, config: Any) -> None:
        convolutional = copy(config)
        convolutional.hidden_size, convolutional.num_hidden_layers = config.latent_dim, 0
        super().__init__(convolutional)
        self.config = config
        del self.code_embedding, self.code_offset
        for module in self.modules():
            if isinstance(module, Qwen3OmniMoeCausalTransConvNet):
                module.left_pad = 0  # Qwen3-Omni's cuts both sides
        self.quantizer = MimiSplitResidualVectorQuantizer(
            MimiConfig(
                codebook_size=config.codebook_size,
                codebook_dim=config.codebook_dim // 2,
                vector_quantization_hidden_dimension=config.codebook_dim // 2,
                hidden_size=config.codebook_dim,
                num_quantizers=config.num_quantizers,
                num_semantic_quantizers=1,
            )
        )
        for module in self.quantizer.modules():
            if isinstance(module, MimiEuclideanCodebook):
                del module.initialized  # of training, and in no checkpoint
        self.pre_conv = Qwen3OmniMoeCausalConvNet(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = Qwen3OmniMoeCode2WavTransformerModel._from_config(config)
        self.pre_transformer.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.pre_transformer.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, codes: torch.Tensor, **_: Any) -> torch.Tensor:
        transformer = self.pre_transformer
        hidden = self.pre_conv(self.quantizer.decode(codes)).transpose(1, 2)
        hidden = transformer(inputs_embeds=transformer.input_proj(hidden)).last_hidden_state
        hidden = transformer.output_proj(hidden).transpose(1, 2)
        for module in (*(part for parts in self.upsample for part in parts), *self.decoder):
            hidden = module(hidden)
        return hidden.clamp(min=-1, max=1)
