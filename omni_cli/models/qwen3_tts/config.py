"""The configuration of a checkpoint, which transformers does not know."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig, Qwen3Config
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig


class Qwen3TTSTalkerConfig(Qwen3Config):
    """The talker's decoder, with the code predictor's configuration, and the ids of codec tokens."""

    model_type = "qwen3_tts_talker"
    sub_configs: ClassVar[dict[str, Any]] = {"code_predictor_config": Qwen3OmniMoeTalkerCodePredictorConfig}

    code_predictor_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **settings: Any) -> None:
        if not isinstance(self.code_predictor_config, PreTrainedConfig):
            self.code_predictor_config = Qwen3OmniMoeTalkerCodePredictorConfig(**(self.code_predictor_config or {}))
        # Its positions are equal in all sections of M-RoPE, which is an ordinary rotary embedding then.
        scaling = settings.pop("rope_scaling", None) or getattr(self, "rope_parameters", None) or {}
        self.rope_parameters = {key: value for key, value in scaling.items() if key == "rope_theta"}
        super().__post_init__(**settings)


class Qwen3TTSConfig(PreTrainedConfig):
    """A whole checkpoint without its speech tokenizer."""

    model_type = "qwen3_tts"
    sub_configs: ClassVar[dict[str, Any]] = {"talker_config": Qwen3TTSTalkerConfig}

    talker_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **settings: Any) -> None:
        if not isinstance(self.talker_config, PreTrainedConfig):
            self.talker_config = Qwen3TTSTalkerConfig(**(self.talker_config or {}))
        super().__post_init__(**settings)

    def get_text_config(self, *_: object, **__: object) -> Any:
        return self.talker_config


AutoConfig.register("qwen3_tts", Qwen3TTSConfig, exist_ok=True)
