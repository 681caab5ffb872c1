"""Hugging Face's own Qwen3-Omni, end to end, as the reference for the whole chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

from omni_cli.outputs import GenerateRequest
from support.reference import MAX_TOKENS, MIN_TOKENS, REPETITION_PENALTY, Reference, SpokenResult


class Qwen3Reference(Reference):
    """Greedy, float32."""

    def __init__(self, model: str | Path) -> None:
        self.processor = Qwen3OmniMoeProcessor.from_pretrained(model)
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
        self.model.eval()
        # transformers 5.19 reads the audio encoder's window from the talker's configuration, which has none.
        if self.model.has_talker:
            self.model.talker.config.audio_config = self.model.config.thinker_config.audio_config

    def speak(self, request: GenerateRequest, codec_max_tokens: int) -> SpokenResult:
        talker_generate = self.model.talker.generate
        generated: dict[str, Any] = {}

        def keep_codes(**kwargs: Any) -> Any:
            generated["talker"] = talker_generate(**kwargs)
            return generated["talker"]

        self.model.talker.generate = keep_codes
        inputs = self.inputs(request)
        try:
            with torch.no_grad():
                sequences, waveform = self.model.generate(
                    **inputs,
                    speaker=request.speaker or "Ethan",
                    thinker_min_new_tokens=MIN_TOKENS,
                    thinker_max_new_tokens=MAX_TOKENS,
                    thinker_eos_token_id=self.processor.tokenizer.eos_token_id,
                    thinker_do_sample=False,
                    talker_do_sample=False,
                    talker_min_new_tokens=MIN_TOKENS,
                    talker_max_new_tokens=codec_max_tokens,
                    talker_repetition_penalty=REPETITION_PENALTY,
                )
        finally:
            self.model.talker.generate = talker_generate
        result = generated["talker"]
        frames = [step[-1][0].tolist() for step in result.hidden_states if step[-1] is not None]
        return SpokenResult(
            tuple(sequences[0, inputs["input_ids"].shape[1] :].tolist()),
            tuple(result.sequences[0].tolist()),
            waveform.reshape(-1).numpy(),
            tuple(map(tuple, frames)),
        )
