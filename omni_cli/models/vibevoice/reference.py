"""transformers' VibeVoice as the family's reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList, VibeVoiceForConditionalGeneration, VibeVoiceProcessor
from transformers.models.vibevoice.generation_vibevoice import VibeVoiceTokenConstraintProcessor

from omni_cli.config.schema import EngineConfig
from omni_cli.models.forcing import ForcedTokens, replace_attribute
from omni_cli.models.reference import SpokenText, as_samples, get_device, get_limits, load_model, noise_in
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.models.vibevoice.prompts import make_inputs
from omni_cli.models.vibevoice.settings import SpeakerConfig
from omni_cli.requests.outputs import GenerateRequest


class VibeVoiceReference:
    """Greedy, with the profile's maximum of tokens unless tokens are given."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        (stage,) = config.stages
        assert isinstance(stage, SpeakerConfig)
        self._stage, self._config = stage, config
        self._noise_dtype = getattr(torch, way.noise_dtype)
        self._processor: Any = VibeVoiceProcessor.from_pretrained(folder)
        self._model: Any = load_model(
            VibeVoiceForConditionalGeneration, folder, way, config, attention_of="text_config"
        )

    def expected(self, output: EngineOutput) -> Expected:
        tokens = ForcedTokens.of(output.tokens[self._stage.name])
        return self.speak(output.request, tokens).expected(self._config, output, tokens.scores)

    def speak(self, request: GenerateRequest, tokens: ForcedTokens | None = None) -> SpokenText:
        stage = self._stage
        arguments = dict(get_limits(self._config, stage.name))
        if stage.num_diffusion_steps is not None:
            arguments["num_diffusion_steps"] = stage.num_diffusion_steps
        if stage.cfg_scale is not None:
            arguments["guidance_scale"] = stage.cfg_scale
        if tokens is not None:
            # Only tokens that the engine can choose count, and the model's own constraint comes last.
            config = self._model.config
            ids = [config.audio_bos_token_id, config.audio_eos_token_id, config.audio_token_id, config.eos_token_id]
            allowed = VibeVoiceTokenConstraintProcessor(ids, config.vocab_size, device=get_device())
            arguments |= {
                "max_new_tokens": len(tokens.token_ids),
                "logits_processor": LogitsProcessorList([allowed, tokens]),
            }
        inputs = make_inputs(self._processor, request).to(get_device())
        if "input_values" in inputs:
            inputs["input_values"] = inputs["input_values"].to(self._model.dtype)
        torch.manual_seed(request.seed)
        noise = noise_in(self._noise_dtype, on_host=True)
        with torch.no_grad(), noise, replace_attribute(torch, "randn_like", self._randn_like):
            generated = self._model.generate(**inputs, do_sample=False, return_dict_in_generate=True, **arguments)
        num_input_tokens, (audio,) = inputs["input_ids"].shape[1], generated.audio
        sound = np.zeros(0, np.float32) if audio is None else as_samples(audio)
        return SpokenText(sound, num_input_tokens, tokens=tuple(generated.sequences[0, num_input_tokens:].tolist()))

    def _randn_like(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like, dtype=self._noise_dtype, device="cpu").normal_().to(like)
