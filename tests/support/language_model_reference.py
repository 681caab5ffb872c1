"""transformers' greedy `generate`, which the stages' tokens are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, AutoProcessor, AutoTokenizer

from omni_cli.outputs import GenerateRequest
from support.media_samples import clip, image_of, tone
from support.reference import videos_of


class Reference:
    """A checkpoint in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        is_multimodal = (folder / "processor_config.json").is_file()
        self._processor: Any = (AutoProcessor if is_multimodal else AutoTokenizer).from_pretrained(folder)
        model: Any = AutoModelForMultimodalLM if is_multimodal else AutoModelForCausalLM
        self._model = model.from_pretrained(folder, dtype=torch.float32).eval()

    def tokens(self, prompt: str, max_tokens: int, **media: Sequence[int]) -> list[int]:
        """The answer's token ids; `media` are seeds of samples, by kind."""
        parts = [{"type": kind} for kind, seeds in media.items() for _ in seeds]
        content: Any = [*parts, {"type": "text", "text": prompt}] if parts else prompt
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        given: dict[str, Any] = {}
        if "image" in media:
            given["images"] = [Image.fromarray(image_of(seed)) for seed in media["image"]]
        if "audio" in media:
            given |= {"audio": [tone(seed)[0] for seed in media["audio"]], "sampling_rate": tone(0)[1]}
        if "video" in media:
            clips = tuple(clip(seed) for seed in media["video"])
            given |= videos_of(GenerateRequest("", videos=clips))
        inputs = self._processor(text=[text], return_tensors="pt", add_special_tokens=False, **given)
        output = self._model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        tokens: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens
