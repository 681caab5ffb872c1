"""Times of words as transformers finds them: Whisper's from its cross-attention, others by a forced aligner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForTokenClassification, AutoProcessor, WhisperForConditionalGeneration
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.qwen3_asr.processing_qwen3_asr import FORCED_ALIGNER_LANGUAGES, LANGUAGE_CODE_TO_NAME
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from omni_cli.core.errors import InputError
from omni_cli.models.reference import replace_attribute
from omni_cli.requests.contents import Word


class WordAligner:
    """transformers' model of the same checkpoint, because vLLM's keeps no attention."""

    def __init__(self, folder: str, dtype: torch.dtype, device: torch.device, tokenizer: Any) -> None:
        # The other implementations of attention return no weights.
        self._model: Any = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        )
        self._model.to(device).eval()
        self._tokenizer = tokenizer

    @torch.inference_mode()
    def align(
        self, frames: torch.Tensor, num_frames: int, prompt_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[float]:
        """Return where each token begins in seconds: the first at 0, the others where the one before ends, and the end.

        `frames` (num_mels, window size) are the window's spectrogram, of which `num_frames` are sound; `token_ids` are
        what the model wrote after `prompt_ids`, timestamps and the end included. The last one, which no step follows,
        ends where it begins.
        """
        model = self._model
        ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
        features = frames[None].to(model.device, model.dtype)
        output = model(features, decoder_input_ids=ids, output_attentions=True, use_cache=False)
        times = model._extract_token_timestamps(
            GenerateEncoderDecoderOutput(sequences=ids, cross_attentions=(output.cross_attentions,)),
            model.generation_config.alignment_heads,
            num_frames=np.array([num_frames]),
            num_input_ids=len(prompt_ids),
        )
        return [0.0, *times[0][len(prompt_ids) :].tolist()]

    def read_words(
        self, token_ids: Sequence[int], times_s: Sequence[float], start_s: float, language: str
    ) -> Iterator[Word]:
        """Yield the words of tokens that begin at `times_s` of a window, with the punctuation beside them."""
        places = [place for place, token_id in enumerate(token_ids) if token_id < self._tokenizer.eos_token_id]
        ids = [token_ids[place] for place in places]
        words, _, parts = _combine_tokens_into_words(self._tokenizer, ids, language)
        for word, part in zip(words, parts, strict=True):
            begin_s, end_s = times_s[places[part[0]]], times_s[places[part[-1]] + 1]
            yield Word(round(start_s + begin_s, 2), round(start_s + end_s, 2), word.strip())


class ForcedAligner:
    """Qwen3's forced aligner, which finds the words of a given text in a sound."""

    def __init__(self, folder: str, dtype: torch.dtype, device: torch.device) -> None:
        # vLLM registers a configuration of its own under the same name.
        with replace_attribute(CONFIG_MAPPING, "_extra_content", {}):
            self._processor: Any = AutoProcessor.from_pretrained(folder)
            self._model: Any = AutoModelForTokenClassification.from_pretrained(folder, dtype=dtype)
        self._model.to(device).eval()

    def check_language(self, language: str | None) -> None:
        """Raise `InputError` for a language with words that a missing package finds."""
        try:
            self._processor.split_words_for_alignment("", LANGUAGE_CODE_TO_NAME.get(language or ""))
        except ImportError as error:
            message, _, remedy = str(error).partition(". ")
            raise InputError(message, hint=f"{remedy}, or drop `word_timestamps`") from error

    @torch.inference_mode()
    def find_words(self, samples: np.ndarray, text: str, start_s: float, language: str | None) -> Iterator[Word]:
        """Yield the words of what is said in samples that begin at `start_s`."""
        if not any(map(str.isalnum, text)):  # no words, with which transformers' processor fails
            return
        self.check_language(language)
        known = LANGUAGE_CODE_TO_NAME.get(language or "") in FORCED_ALIGNER_LANGUAGES
        inputs, words = self._processor.prepare_forced_aligner_inputs(samples, text, language if known else None)
        inputs = inputs.to(self._model.device, self._model.dtype)
        logits = self._model(**inputs).logits
        marks = self._model.config.timestamp_token_id
        (found,) = self._processor.decode_forced_alignment(logits, inputs["input_ids"], words, marks)
        for word in found:
            yield Word(round(start_s + word["start_time"], 3), round(start_s + word["end_time"], 3), word["text"])
