"""Whisper's rules for the next token, transformers' own, and what is noted while a window is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from omni_cli.models.transcription.prompts import read_own

FIRST_IDS = "first_ids"
"""The key of `SamplingParams.extra_args` that turns the rules on, for the tokens of the language and the task.

They follow the token that begins a transcript, after which the model tells how probable silence is.
"""
WINDOW = "window"
"""The key of `SamplingParams.extra_args` that names the window whose probabilities are noted."""


@dataclass
class Confidence:
    """Measure of how sure the model is of a window's tokens, by the log-probabilities that the rules leave."""

    no_speech_prob: float | None = None
    language_id: int | None = None
    _sum: torch.Tensor | float = 0.0
    _next: torch.Tensor | None = None

    def note_first(self, logits: torch.Tensor, no_speech_id: int, languages: torch.Tensor) -> None:
        """Note the logits of the token that begins a transcript, of which those of `languages` tell the language."""
        self.no_speech_prob = float(logits.float().softmax(-1)[no_speech_id])
        self.language_id = int(languages[logits[languages].argmax()]) if len(languages) else None

    def note(self, token_ids: Sequence[int], logits: torch.Tensor) -> None:
        """Note the logits of the token after `token_ids`."""
        if token_ids and self._next is not None:
            self._sum = self._sum + self._next[token_ids[-1]]
        self._next = logits.float().log_softmax(-1)

    def avg_logprob(self, token_ids: Sequence[int]) -> float | None:
        """Return the mean over all tokens of a window, the end included."""
        if self._next is None or not token_ids:
            return None
        return float(self._sum + self._next[token_ids[-1]]) / len(token_ids)


CONFIDENCES: dict[str, Confidence] = {}
"""Of the windows that run in this process, by name."""


class WhisperRules(AdapterLogitsProcessor):
    """Applies transformers' rules to the requests that transcribe: tokens that are left out, then those for times."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        settings = read_own(vllm_config.model_config)
        # transformers' processors look for these tokens in the whole vocabulary, for each token that is written.
        always = set(settings.suppress_tokens or ())
        at_begin = always | set(settings.begin_suppress_tokens or ())
        vocab_size = vllm_config.model_config.get_vocab_size()
        languages = (getattr(settings, "lang_to_id", None) or {}).values()
        self._left_out, self._left_out_at_begin, self._languages = (
            torch.tensor([each for each in ids if each < vocab_size], dtype=torch.long, device=device)
            for ids in (always, at_begin, languages)
        )
        # Other models have none, and no request with these rules. The token of silence is the one before.
        if hasattr(settings, "no_timestamps_token_id"):
            self._no_timestamps: int = settings.no_timestamps_token_id
            self._rules_of_times = WhisperTimeStampLogitsProcessor(settings, 0)

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None:
        extra = params.extra_args or {}
        if FIRST_IDS not in extra:
            return None
        first_ids, confidence = extra[FIRST_IDS], CONFIDENCES.get(extra[WINDOW])

        def apply(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            if not token_ids and confidence is not None:
                confidence.note_first(logits, self._no_timestamps - 1, self._languages)
            if len(token_ids) < len(first_ids):
                only = torch.full_like(logits, -torch.inf)
                only[first_ids[len(token_ids)]] = 0.0
                return only
            own = token_ids[len(first_ids) :]
            allowed = logits.index_fill(0, self._left_out if own else self._left_out_at_begin, -torch.inf)
            ids = torch.tensor([own], dtype=torch.long, device=logits.device)
            allowed = self._rules_of_times(ids, allowed[None])[0]
            if confidence is not None:
                confidence.note(own, allowed)
            return allowed

        return apply
