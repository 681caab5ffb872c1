"""Log-probabilities in replies."""

from __future__ import annotations

from omni_cli.outputs import RequestResult, TextOutput, TokenLogprobs


def content_logprobs(result: RequestResult) -> tuple[TokenLogprobs, ...] | None:
    """Return those of the answer's text, without a stop string's; None if the request asked for none."""
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    found = result.stages[0].output_logprobs
    return None if found is None else found[: len(text.token_ids)]


def named(item: tuple[int, float, str | None]) -> tuple[str, float]:
    """Return a token's text and its log-probability, as JSON can have it."""
    token_id, logprob, text = item
    # JSON has no infinity; OpenAI has this number in its place.
    return f"token_id:{token_id}" if text is None else text, max(logprob, -9999.0)
