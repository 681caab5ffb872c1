"""Hugging Face's own CSM, from text to speech, as the reference of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import CsmForConditionalGeneration, CsmProcessor

from omni_cli.outputs import GenerateRequest


@dataclass(frozen=True)
class SpokenText:
    """`codes` has a frame of one code per codebook for each step, the end included."""

    codes: tuple[tuple[int, ...], ...]
    waveform: np.ndarray


class CsmReference:
    """Greedy, float32."""

    def __init__(self, model: str | Path) -> None:
        self.processor = CsmProcessor.from_pretrained(model)
        self.model = CsmForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()

    def speak(self, request: GenerateRequest, *, max_tokens: int) -> SpokenText:
        content = [{"type": "text", "text": request.prompt}]
        inputs = self.processor.apply_chat_template(
            [{"role": request.speaker or "0", "content": content}], tokenize=True, return_dict=True
        )
        with torch.no_grad():
            generated = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=False,
                max_new_tokens=max_tokens,
                output_audio=True,
                return_dict_in_generate=True,
            )
        frames = tuple(map(tuple, generated.sequences[0].tolist()))
        return SpokenText(frames, generated.audio[0].numpy())
