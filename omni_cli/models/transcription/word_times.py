"""Times of Whisper's words, from its cross-attention, as transformers finds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from omni_cli.requests.contents import Word


class WordAligner:
    """transformers' model of the same checkpoint; vLLM's keeps no attention."""

    def __init__(self, folder: str, dtype: torch.dtype, device: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)
        # The other implementations of attention return no weights.
        self._model: Any = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        )
        self._model.to(device).eval()
        self._tokenizer = tokenizer

    def align(
        self, samples: np.ndarray, prompt_ids: Sequence[int], token_ids: Sequence[int], start_s: float, language: str
    ) -> Iterator[Word]:
        """Yield the words of a window, with the punctuation beside them.

        `samples` (float32, at the model's rate) begin at `start_s` of the sound; `token_ids` are what the model wrote
        after `prompt_ids`, timestamps included. A word begins where the token before it ends, as in transformers'
        pipeline.
        """
        times = self._token_times(samples, prompt_ids, token_ids)
        first_special = self._tokenizer.eos_token_id
        texts = [number for number, token_id in enumerate(token_ids) if token_id < first_special]
        words, _, indices = _combine_tokens_into_words(self._tokenizer, [token_ids[at] for at in texts], language)
        for word, parts in zip(words, indices, strict=True):
            first, last = texts[parts[0]], texts[parts[-1]]
            begin_s = times[first - 1] if first else 0.0
            yield Word(round(start_s + begin_s, 2), round(start_s + times[last], 2), word.strip())

    @torch.inference_mode()
    def _token_times(self, samples: np.ndarray, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Return where each token ends, in seconds from the window's beginning."""
        model, extractor = self._model, self._extractor
        inputs = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        ids = torch.tensor([[*prompt_ids, *token_ids]], device=model.device)
        output = model(
            inputs["input_features"].to(model.device, model.dtype), decoder_input_ids=ids,
            output_attentions=True, use_cache=False,
        )  # fmt: skip
        times = model._extract_token_timestamps(
            GenerateEncoderDecoderOutput(sequences=ids, cross_attentions=(output.cross_attentions,)),
            model.generation_config.alignment_heads,
            num_frames=np.array([len(samples) // extractor.hop_length]),
            num_input_ids=len(prompt_ids),
        )
        return [float(time_s) for time_s in times[0][len(prompt_ids) :]]
