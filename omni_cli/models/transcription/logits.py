"""Whisper's rules for its next token, which transformers' `generate` applies and vLLM does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

TIMESTAMPS = "timestamps"
"""The key of `SamplingParams.extra_args` that turns the rules on; its value is true for a text with timestamps."""


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
        if getattr(settings, "no_timestamps_token_id", None) is not None:
            self._rules[True] = LogitsProcessorList([*rules, WhisperTimeStampLogitsProcessor(settings, 0)])

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None:
        timestamps = (params.extra_args or {}).get(TIMESTAMPS)
        if timestamps is None:
            return None
        rules = self._rules[timestamps]

        def apply(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([token_ids], dtype=torch.long, device=logits.device)
            return rules(ids, logits[None])[0]

        return apply
