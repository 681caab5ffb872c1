"""transformers' CSM as the family's reference: backbone with depth decoder, and Mimi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CsmForConditionalGeneration, CsmProcessor

from omni_cli.config.schema import EngineConfig
from omni_cli.models.csm.family import make_inputs
from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by
from omni_cli.models.reference import SpokenText, as_samples, get_device, get_limits, load_model
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.requests.outputs import GenerateRequest


class CsmReference:
    """Greedy, with the profile's maximum of tokens unless tokens are given."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        self._config, self._stage = config, config.stages[0].name
        self._processor: Any = CsmProcessor.from_pretrained(folder)
        self._model: Any = load_model(CsmForConditionalGeneration, folder, way, config)

    def expected(self, output: EngineOutput) -> Expected:
        engine = output.tokens[self._stage]
        tokens, codes = ForcedTokens.of(engine), ForcedCodes(engine.codes or ())
        # The engine never makes ids that Mimi cannot decode.
        config = self._model.config
        tokens.suppressed = list(range(config.codec_config.codebook_size, config.vocab_size))
        spoken = self.speak(output.request, tokens, codes)
        return spoken.expected(self._config, output, codes.added_to(tokens.scores))

    def speak(
        self, request: GenerateRequest, tokens: ForcedTokens | None = None, codes: ForcedCodes | None = None
    ) -> SpokenText:
        inputs = make_inputs(self._processor, request).to(get_device())
        frames = (codes or ForcedCodes(())).leading(self._model.depth_decoder)
        with torch.no_grad(), led_by(self._model, tokens), frames:
            generated = self._model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=False,
                **get_limits(self._config, self._stage),
                output_audio=True,
                return_dict_in_generate=True,
            )
        waveform, num_input_tokens = as_samples(generated.audio[0]), inputs["input_ids"].shape[1]
        return SpokenText(waveform, num_input_tokens, codes=tuple(map(tuple, generated.sequences[0].tolist())))
