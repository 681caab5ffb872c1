"""Hugging Face's own Qwen2.5-Omni, end to end, as the reference for the whole chain.

`qwen3_reference.py` has Qwen3-Omni's, with the same limits and comparison.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

from omni_cli.outputs import AudioOutput, GenerateRequest, RequestResult, TextOutput
from support.omni_requests import FEW_STEPS

MAX_TOKENS = 24
# transformers cannot speak an answer of one token: it has no reply row to put after the prompt.
MIN_TOKENS = 2
REPETITION_PENALTY = 1.05


def limits(codec_max_tokens: int) -> tuple[str, ...]:
    """The limits of the references, as settings of a profile."""
    return (
        f"thinker.sampling.min_tokens={MIN_TOKENS}",
        f"thinker.sampling.max_tokens={MAX_TOKENS}",
        f"talker.sampling.min_tokens={MIN_TOKENS}",
        f"talker.sampling.max_tokens={codec_max_tokens}",
    )


@dataclass(frozen=True)
class SpokenResult:
    """`codes` has a frame of one code per codebook for each codec token but the last; None for a single codebook."""

    text_token_ids: tuple[int, ...]
    codec_token_ids: tuple[int, ...]
    waveform: np.ndarray
    codes: tuple[tuple[int, ...], ...] | None = None


def assert_spoken(result: RequestResult, reference: SpokenResult, *, atol: float) -> None:
    """The same tokens, the same codes, and samples within `atol`."""
    assert result.error is None, result.error
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    audio = next(output for output in result.outputs if isinstance(output, AudioOutput))
    talker = next(trace for trace in result.stages if trace.name == "talker")
    assert text.token_ids == reference.text_token_ids
    assert talker.output_token_ids == reference.codec_token_ids
    codes = None if talker.output_codes is None else tuple(map(tuple, talker.output_codes))
    assert codes == reference.codes
    assert audio.samples.shape == reference.waveform.shape
    assert np.abs(reference.waveform).max() > 0.01
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=atol, rtol=0)


class Reference:
    """Greedy, float32.

    transformers 5.19 drops an attention mask of ones on the way to the talker, which then skips the codec embeddings
    of its prompt and M-RoPE. `keep_mask` hands the mask on, as for any padded batch: that is `talker_prompt: full`.
    """

    def __init__(self, model: str | Path, *, keep_mask: bool = False) -> None:
        self.processor = Qwen2_5OmniProcessor.from_pretrained(model)
        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
        self.model.eval()
        if keep_mask:
            self._keep_mask()

    def expected(self, requests: Iterable[GenerateRequest], codec_max_tokens: int) -> dict[str, SpokenResult]:
        return {request.request_id: self.speak(request, codec_max_tokens) for request in requests}

    def speak(self, request: GenerateRequest, codec_max_tokens: int) -> SpokenResult:
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
                thinker_min_new_tokens=MIN_TOKENS,
                thinker_max_new_tokens=MAX_TOKENS,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_min_new_tokens=MIN_TOKENS,
                talker_max_new_tokens=codec_max_tokens,
                talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
                talker_repetition_penalty=REPETITION_PENALTY,
                token2wav_num_steps=int(FEW_STEPS.rpartition("=")[2]),
                use_audio_in_video=False,
            )
        finally:
            self.model.talker.generate, self.model.token2wav.forward = talker_generate, token2wav_forward
        return SpokenResult(
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
        content += [{"type": "video", "video": ""} for _ in request.videos]
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
            **videos_of(request),
        )


def videos_of(request: GenerateRequest) -> dict[str, Any]:
    """The processor's arguments for videos that have been sampled already."""
    if not request.videos:
        return {}
    metadata = [
        {
            "total_num_frames": video.total_num_frames,
            "fps": video.fps,
            "frames_indices": list(video.frames_indices),
        }
        for video in request.videos
    ]
    frames = [video.frames for video in request.videos]
    return {"videos": frames, "video_metadata": metadata, "do_sample_frames": False}
