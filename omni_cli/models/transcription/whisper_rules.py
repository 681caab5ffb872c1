"""Whisper's rules for the next token, transformers' own, and what is noted while a window is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

TIMESTAMPS = "timestamps"
"""The key of `SamplingParams.extra_args` that turns the rules on; its value is true for a text with timestamps."""
WINDOW = "window"
"""The key of `SamplingParams.extra_args` that names the window whose probabilities are noted."""


@dataclass
class Confidence:
    """How sure the model is of a window's tokens, by the log-probabilities that the rules leave.

    `no_speech_prob` is None where the prompt goes on after the token that begins a transcript.
    """

    _sum: torch.Tensor | float = 0.0
    _next: torch.Tensor | None = None
    _no_speech: torch.Tensor | None = None

    def note(self, token_ids: Sequence[int], no_speech: torch.Tensor, logits: torch.Tensor) -> None:
        """Note the logits of the token after `token_ids`, and the probability that nothing is said."""
        if not token_ids:
            self._no_speech = no_speech
        elif self._next is not None:
            self._sum = self._sum + self._next[token_ids[-1]]
        self._next = logits.float().log_softmax(-1)

    def avg_logprob(self, token_ids: Sequence[int]) -> float | None:
        """Return the mean over all tokens of a window, the end included."""
        if self._next is None or not token_ids:
            return None
        return float(self._sum + self._next[token_ids[-1]]) / len(token_ids)

    @property
    def no_speech_prob(self) -> float | None:
        return None if self._no_speech is None else float(self._no_speech)


CONFIDENCES: dict[str, Confidence] = {}
"""Of the windows that run in this process, by name."""


class WhisperRules(AdapterLogitsProcessor):
    """Applies transformers' own processors to the requests that transcribe, in the order in which `generate` does."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        settings = GenerationConfig.from_pretrained(vllm_config.model_config.model)
        rules = LogitsProcessorList()
        if settings.begin_suppress_tokens is not None:
            rules.append(SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, 0, str(device)))
        if settings.suppress_tokens:
            rules.append(SuppressTokensLogitsProcessor(settings.suppress_tokens, str(device)))
        self._rules = {False: rules}
        # The token of silence is the one before.
        self._no_timestamps: int | None = getattr(settings, "no_timestamps_token_id", None)
        if self._no_timestamps is not None:
            self._rules[True] = LogitsProcessorList([*rules, WhisperTimeStampLogitsProcessor(settings, 0)])

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None:
        extra = params.extra_args or {}
        timestamps = extra.get(TIMESTAMPS)
        if timestamps is None:
            return None
        rules, confidence = self._rules[timestamps], CONFIDENCES.get(extra.get(WINDOW, ""))

        def apply(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([token_ids], dtype=torch.long, device=logits.device)
            allowed = rules(ids, logits[None])[0]
            if confidence is not None and self._no_timestamps is not None:
                no_speech = logits.float().softmax(-1)[self._no_timestamps - 1] if not token_ids else logits
                confidence.note(token_ids, no_speech, allowed)
            return allowed

        return apply
