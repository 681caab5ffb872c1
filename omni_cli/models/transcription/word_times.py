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
        """Return where each token ends in seconds.

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
        ends_s: list[float] = times[0][len(prompt_ids) :].tolist()
        return ends_s

    def read_words(
        self, token_ids: Sequence[int], ends_s: Sequence[float], language: str | None, step_s: float
    ) -> Iterator[Word]:
        """Yield the words of all tokens of a sound, which end at `ends_s`; one step of its times takes `step_s`."""
        mark = self._tokenizer.convert_tokens_to_ids(f"<|{language}|>")
        made = {"tokens": torch.tensor([[mark, *token_ids]]), "token_timestamps": torch.tensor([[0.0, *ends_s]])}
        form = {"return_timestamps": "word", "return_language": None, "time_precision": step_s}
        for word in self._tokenizer._decode_asr([made], **form)[1]["chunks"]:
            begin_s, end_s = word["timestamp"]
            yield Word(begin_s, end_s, word["text"].strip())


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
