"""Log-probabilities in replies."""

from __future__ import annotations


def named(item: tuple[int, float, str | None]) -> tuple[str, float]:
    """Return a token's text and its log-probability, as JSON can have it."""
    token_id, logprob, text = item
    # JSON has no infinity; OpenAI has this number in its place.
    return f"token_id:{token_id}" if text is None else text, max(logprob, -9999.0)
