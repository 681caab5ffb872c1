"""transformers' `generate` as the reference of language models, alone and with images, audio and video."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, AutoProcessor, AutoTokenizer

from omni_cli.config.families import PROCESSOR_FILES
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.models.forcing import ForcedTokens, led_by
from omni_cli.models.reference import get_device, get_limits, load_adapters, load_model, processor_inputs, use_adapter
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.requests.outputs import GenerateRequest


class LanguageModelReference:
    """A model of transformers with its tokenizer or processor."""

    takes_adapters = True

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        (stage,) = config.stages
        assert isinstance(stage, ARStageConfig)
        self._stage = stage
        self._limits = get_limits(config, stage.name)
        is_multimodal = any((folder / name).is_file() for name in PROCESSOR_FILES)
        trust = {"trust_remote_code": True} if config.trust_remote_code else {}
        self._processor: Any = (AutoProcessor if is_multimodal else AutoTokenizer).from_pretrained(folder, **trust)
        self.num_input_tokens = 0
        self._model = load_model(
            AutoModelForMultimodalLM if is_multimodal else AutoModelForCausalLM, folder, way, config
        )
        if hasattr(inner := self._model.base_model, "get_rope_index"):
            inner.get_rope_index = functools.partial(_follow_videos, inner.get_rope_index)
        load_adapters(self._model, stage)

    def generate(self, request: GenerateRequest, max_tokens: int, tokens: ForcedTokens | None = None) -> list[int]:
        """Return the ids of the greedy answer, or those of `tokens`."""
        inputs = self.inputs(request).to(get_device()).to(self._model.dtype)
        use_adapter(self._model, self._stage, request)
        limits = {**self._limits, "max_new_tokens": max_tokens}
        with torch.no_grad(), led_by(self._model, tokens):
            output = self._model.generate(**inputs, do_sample=False, **limits)
        self.num_input_tokens = inputs["input_ids"].shape[1]
        answer: list[int] = output[0, self.num_input_tokens :].tolist()
        return answer

    def inputs(self, request: GenerateRequest) -> Any:
        """Return the model's inputs for a request."""
        return processor_inputs(self._processor, request, self._stage.system_prompt)

    def expected(self, output: EngineOutput) -> Expected:
        tokens = ForcedTokens.of(output.tokens[self._stage.name])
        self.generate(output.request, len(tokens.token_ids), tokens)
        return Expected({self._stage.name: tokens.scores}, num_input_tokens=self.num_input_tokens)


def _follow_videos(get_rope_index: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return positions where text begins after the last of a video, as in vLLM; transformers 5.19 counts its size."""
    positions, end = get_rope_index(*args, **kwargs)
    types: Any = None if kwargs.get("video_grid_thw") is None else kwargs.get("mm_token_type_ids")
    for begin in () if types is None else (types[0].diff().nonzero().flatten() + 1).tolist():
        positions[:, :, begin:] += positions[:, :, :begin].max() + 1 - positions[1, 0, begin]
        end = (positions.max() + 1 - types.shape[1]).reshape(1, 1)
    return positions, end
