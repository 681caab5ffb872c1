"""The configuration of a checkpoint, which transformers does not know, and the projection that it describes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from torch import nn
from transformers import AutoConfig, PreTrainedConfig, Qwen3Config
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerResizeMLP


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


def make_text_projection(text_width: int, width: int, activation: str = "silu") -> nn.Module:
    """Create what projects text embeddings to the talker's width."""
    sizes = SimpleNamespace(intermediate_size=text_width, hidden_size=width, hidden_act=activation)
    own = SimpleNamespace(thinker_hidden_size=text_width, text_config=sizes)
    projection: nn.Module = Qwen3OmniMoeTalkerResizeMLP(own)
    return projection


AutoConfig.register("qwen3_tts", Qwen3TTSConfig, exist_ok=True)
