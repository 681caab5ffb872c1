"""The `usage` of an answer: how many tokens it has."""

from __future__ import annotations

import msgspec


class _Details(msgspec.Struct):
    audio_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: _Details | None = None

    @property
    def audio_tokens(self) -> int:
        details = self.completion_tokens_details
        return (details and details.audio_tokens) or 0

    @property
    def reasoning_tokens(self) -> int:
        details = self.completion_tokens_details
        return (details and details.reasoning_tokens) or 0

    @property
    def text_tokens(self) -> int | None:
        return None if self.completion_tokens is None else self.completion_tokens - self.audio_tokens
