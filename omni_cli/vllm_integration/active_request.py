"""A request in flight on a stage's vLLM engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omni_cli.outputs import GenerateRequest, PromptTokens, TokenLogprobs
from omni_cli.vllm_integration.reply_parsing import ReplyParser


@dataclass
class ActiveRequest:
    """A request in flight, with the engine's id for it; times are from `time.perf_counter`, in seconds."""

    request: GenerateRequest
    added_s: float
    engine_id: str = ""
    first_token_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_sent_logprobs: int = 0
    num_released: int = 0  # tokens whose text no stop string can cut any more
    num_chars: int = 0  # of the text after these tokens
    text: list[str] = field(default_factory=list)
    prompt: PromptTokens | None = None
    reply: ReplyParser | None = None
    reported_s: float = 0.0
    context: dict[str, Any] = field(default_factory=dict)
