"""Hugging Face's own Qwen2.5-Omni, end to end, as the reference for the whole chain."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

from omni_cli.outputs import GenerateRequest


@dataclass(frozen=True)
class ReferenceResult:
    text_token_ids: tuple[int, ...]
    codec_token_ids: tuple[int, ...]
    waveform: np.ndarray


class Reference:
    """Greedy, float32, with the limits and the repetition penalty of a profile.

    transformers 5.23 drops an attention mask of ones on the way to the talker, which then skips the codec embeddings
    of its prompt and M-RoPE. `keep_mask` hands the mask on, as for any padded batch: that is `talker_prompt: full`.
    """

    def __init__(self, model: str | Path, *, keep_mask: bool = False) -> None:
        self.processor = Qwen2_5OmniProcessor.from_pretrained(model)
        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
        self.model.eval()
        if keep_mask:
            self._keep_mask()

    def generate(
        self,
        request: GenerateRequest,
        *,
        min_tokens: int,
        max_tokens: int,
        codec_max_tokens: int,
        repetition_penalty: float,
        num_inference_steps: int = 10,
    ) -> ReferenceResult:
        talker = self.model.config.talker_config
        generated: dict[str, torch.Tensor] = {}
        talker_generate, token2wav_forward = self.model.talker.generate, self.model.token2wav.forward

        def keep_codes(input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            generated["codes"] = talker_generate(input_ids=input_ids, **kwargs)[:, input_ids.shape[1] :]
            return torch.cat([input_ids, generated["codes"]], dim=1)

        def same_noise(*args: Any, **kwargs: Any) -> torch.Tensor:
            torch.manual_seed(request.seed)
            return token2wav_forward(*args, **kwargs)

        self.model.talker.generate, self.model.token2wav.forward = keep_codes, same_noise
        try:
            inputs = self.inputs(request)
            if "pixel_values" in inputs:
                # Only the thinker looks at pixels; without the prefix the talker is given them too, and refuses.
                inputs["thinker_pixel_values"] = inputs.pop("pixel_values")
            sequences, waveform = self.model.generate(
                **inputs,
                thinker_min_new_tokens=min_tokens,
                thinker_max_new_tokens=max_tokens,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_min_new_tokens=min_tokens,
                talker_max_new_tokens=codec_max_tokens,
                talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
                talker_repetition_penalty=repetition_penalty,
                token2wav_num_steps=num_inference_steps,
                use_audio_in_video=False,
            )
        finally:
            self.model.talker.generate, self.model.token2wav.forward = talker_generate, token2wav_forward
        return ReferenceResult(
            tuple(sequences[0, inputs["input_ids"].shape[1] :].tolist()),
            tuple(generated["codes"][0].tolist()),
            waveform.numpy(),
        )

    def _keep_mask(self) -> None:
        prepare = self.model.talker.prepare_inputs_for_generation

        # generate looks at its parameters to see what it may pass.
        @functools.wraps(prepare)
        def with_mask(input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
            prepared = prepare(input_ids, **kwargs)
            prepared["attention_mask"] = torch.ones_like(input_ids)
            return prepared

        self.model.talker.prepare_inputs_for_generation = with_mask

    def inputs(self, request: GenerateRequest) -> Any:
        from PIL import Image

        content: list[dict[str, Any]] = [{"type": "audio", "audio": ""} for _ in request.audio]
        content += [{"type": "image", "image": ""} for _ in request.images]
        content.append({"type": "text", "text": request.prompt})
        conversation = [
            {"role": message.role, "content": [{"type": part.type, part.type: part.text} for part in message.parts]}
            for message in request.messages
        ]
        text = self.processor.apply_chat_template(
            conversation or [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return self.processor(
            text=[text],
            audio=[samples for samples, _ in request.audio] or None,
            images=[Image.fromarray(image) for image in request.images] or None,
            return_tensors="pt",
            padding=True,
        )
