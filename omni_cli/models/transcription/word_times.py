"""Times of words by a forced aligner, as transformers finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForTokenClassification, AutoProcessor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.qwen3_asr.processing_qwen3_asr import FORCED_ALIGNER_LANGUAGES, LANGUAGE_CODE_TO_NAME

from omni_cli.core.errors import InputError
from omni_cli.models.forcing import replace_attribute
from omni_cli.requests.contents import Word


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
