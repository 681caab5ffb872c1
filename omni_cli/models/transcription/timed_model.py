"""A model that writes the times of what it hears: its windows, its segments and the times of its words.

The last are found as in transformers, from cross-attention.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, WhisperForConditionalGeneration
from transformers.generation.utils import GenerateEncoderDecoderOutput
from vllm.config import VllmConfig

from omni_cli.models.transcription.long_form import Thresholds, TimeTokens
from omni_cli.models.transcription.seeking import Seeker
from omni_cli.models.transcription.spectrogram import Spectrogram
from omni_cli.requests.contents import Segment, Word
from omni_cli.requests.outputs import GenerateRequest


class TimedModel:
    """Whisper, by its sizes and its generation config; `processor` is vLLM's."""

    def __init__(self, config: VllmConfig, own: GenerationConfig, processor: Any, tokenizer: Any) -> None:
        self.extractor = processor.info.get_feature_extractor()
        self.has_words = bool(getattr(own, "alignment_heads", None))
        self._config, self._tokenizer = config, tokenizer
        self._thresholds = Thresholds.of(own)
        self._clock = TimeTokens.of(own, config.model_config.hf_config, self.extractor, tokenizer)

    @cached_property
    def _attentive(self) -> Any:
        """transformers' model of the same checkpoint, because vLLM's keeps no attention."""
        config, device = self._config.model_config, self._config.device_config.device
        # The other implementations of attention return no weights.
        options = {"dtype": config.dtype, "attn_implementation": "eager"}
        return WhisperForConditionalGeneration.from_pretrained(config.model, **options).to(device).eval()

    def new_seeker(self, request: GenerateRequest, samples: np.ndarray, temperature: float) -> Seeker:
        """Begin a sound; `temperature` other than 0 is that of all windows."""
        prompt_ids: list[int] = []
        if words := (request.prompt or "").strip():
            prompt_ids = self._tokenizer.encode(f" {words}", add_special_tokens=False)
        thresholds = replace(self._thresholds, temperatures=(temperature,)) if temperature else self._thresholds
        sound = Spectrogram(samples, self.extractor)
        return Seeker(sound, self._clock, thresholds, request.transcription, prompt_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the words of tokens, without times."""
        words = [token_id for token_id in token_ids if token_id < self._clock.first_id]
        text: str = self._tokenizer.decode(words, skip_special_tokens=True)
        return text

    def make_segments(self, parts: Sequence[Segment], end_s: float, about: Segment) -> Iterator[Segment]:
        """Yield the parts of a window that have words; what is known of it as a whole is that of `about`."""
        words = self.decode([token_id for part in parts for token_id in part.token_ids]).encode()
        about = replace(about, compression_ratio=len(words) / len(zlib.compress(words)) if words else None)
        for part in parts:
            text = self.decode(part.token_ids)
            if text.strip():
                # The last window is longer than the sound, and so may be its last part.
                first_s, last_s = (round(min(time_s, end_s), 3) for time_s in (part.start_s, part.end_s))
                yield replace(about, start_s=first_s, end_s=last_s, text=text, token_ids=part.token_ids)

    @torch.inference_mode()
    def find_words(
        self, seeker: Seeker, begin: int, parts: Sequence[Segment], prompt_ids: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        """Note where the tokens end of the parts of a window that begins at a frame.

        `token_ids` are what the model wrote after `prompt_ids`, timestamps and the end included. The last one, which no
        step follows, ends where it begins.
        """
        model = self._attentive
        ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
        frames = seeker.sound.window(begin, self._clock.size)
        features = frames[None].to(model.device, model.dtype)
        output = model(features, decoder_input_ids=ids, output_attentions=True, use_cache=False)
        times = model._extract_token_timestamps(
            GenerateEncoderDecoderOutput(sequences=ids, cross_attentions=(output.cross_attentions,)),
            model.generation_config.alignment_heads,
            num_frames=np.array([seeker.sound.num_frames - begin]),
            num_input_ids=len(prompt_ids),
        )
        num_kept, start_s = sum(len(part.token_ids) for part in parts), begin * self._clock.frame_s
        seeker.ends_s += [start_s + end_s for end_s in times[0][len(prompt_ids) :][:num_kept].tolist()]

    def read_words(self, seeker: Seeker, language: str | None) -> Iterator[Word]:
        """Yield the words of a sound whose windows have ended."""
        ids = [self._tokenizer.convert_tokens_to_ids(f"<|{language}|>"), *chain(*seeker.heard)]
        made = {"tokens": torch.tensor([ids]), "token_timestamps": torch.tensor([[0.0, *seeker.ends_s]])}
        step_s = self._clock.frames_per_step * self._clock.frame_s
        form = {"return_timestamps": "word", "return_language": None, "time_precision": step_s}
        for word in self._tokenizer._decode_asr([made], **form)[1]["chunks"]:
            begin_s, end_s = word["timestamp"]
            yield Word(begin_s, end_s, word["text"].strip())
