"""transformers' Higgs Audio v2 as the family's reference: language model and codec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import HiggsAudioV2ForConditionalGeneration, LogitsProcessor, LogitsProcessorList

from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.models.forcing import ForcedTokens, replace_attribute
from omni_cli.models.higgs_audio.prompts import load_processor, load_tokenizer, make_inputs
from omni_cli.models.reference import SpokenText, as_samples, get_device, get_limits, load_model
from omni_cli.models.scores import EngineOutput, Expected, TokenScores, Way
from omni_cli.requests.outputs import GenerateRequest


class ForcedFrames(LogitsProcessor):
    """Leads `generate` through the engine's frames; scores have one row per codebook."""

    def __init__(self, tokens: ForcedTokens, frames: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._tokens, self._others = tokens, [ForcedTokens(codes) for codes in zip(*frames, strict=True)][1:]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        codebooks = (self._tokens, *self._others)
        rows = scores.split(1)
        return torch.cat([codes(input_ids, row) for codes, row in zip(codebooks, rows, strict=True)])

    @property
    def scores(self) -> TokenScores:
        found = [codes.scores for codes in self._others]
        return replace(
            self._tokens.scores,
            code_ids=np.stack([item.top_ids for item in found], axis=1),
            code_gaps=np.stack([item.gaps for item in found], axis=1),
            code_margins=np.stack([item.margins for item in found], axis=1),
        )


class HiggsAudioReference:
    """Greedy, with the profile's maximum of tokens unless tokens are given."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        backbone = config.stages[0]
        assert isinstance(backbone, ARStageConfig)
        self._stage, self._scene = backbone.name, backbone.system_prompt
        self._config = config
        # Codes of recordings are the engine's input and are made in float32; samples are made in the way's type.
        heard, spoken = (load_tokenizer(folder, getattr(torch, dtype)) for dtype in ("float32", way.dtype))
        self._listener: Any = load_processor(folder, heard.to(get_device()))
        self._processor: Any = load_processor(folder, spoken.to(get_device()))
        self._model: Any = load_model(HiggsAudioV2ForConditionalGeneration, folder, way, config)
        # transformers draws repeated codes again even if they are greedy, so that they differ from time to time.
        self._model.generation_config.ras_win_len = None

    def expected(self, output: EngineOutput) -> Expected:
        engine = output.tokens[self._stage]
        frames = ForcedFrames(ForcedTokens.of(engine), engine.codes or ())
        spoken = self.speak(output.request, frames, len(engine.token_ids))
        return spoken.expected(self._config, output, frames.scores)

    def speak(
        self, request: GenerateRequest, frames: ForcedFrames | None = None, num_frames: int | None = None
    ) -> SpokenText:
        inputs = make_inputs(self._listener, request, self._scene).to(get_device())
        limits = get_limits(self._config, self._stage) if num_frames is None else {"max_new_tokens": num_frames}
        with torch.no_grad(), self._led_by(frames):
            sequence = self._model.generate(**inputs, do_sample=False, **limits)
            num_heard = inputs["audio_input_ids"].shape[1] if "audio_input_ids" in inputs else 0
            waveform = as_samples(self._processor.decode(sequence[:, num_heard:]))
        codes = tuple(map(tuple, sequence[0, num_heard:].tolist()))
        return SpokenText(waveform, inputs["input_ids"].shape[1], codes)

    def _led_by(self, frames: ForcedFrames | None) -> AbstractContextManager[None]:
        """Put frames, if there are any, after the model's own processors: it accepts no others."""
        own = self._model._get_logits_processor

        def processors(*args: Any, **kwargs: Any) -> LogitsProcessorList:
            return LogitsProcessorList([*own(*args, **kwargs), *([] if frames is None else [frames])])

        return replace_attribute(self._model, "_get_logits_processor", processors)
