"""Hints on requests that failed."""

from __future__ import annotations

from collections.abc import Mapping

from omni_cli.record import Failures

_HINTS = {
    "HTTP 400": "the server refuses the request as it is: see `--no-ignore-eos`, `--input-len` and `--extra-body`",
    "HTTP 401": "give a key with OPENAI_API_KEY or `--api-key`",
    "HTTP 403": "give a key with OPENAI_API_KEY or `--api-key`",
    "HTTP 404": "see which model and which endpoint it has: `--model`, `--endpoint`",
    "HTTP 429": "send fewer requests at once, or let the server take more (`omni serve --max-requests`)",
    "HTTP 503": "the server starts, or restarts a part of itself: wait until it is ready",
    "timeout": "give requests more time: `--request-timeout`",
    "too many open files in the client": "raise the limit with `ulimit -n`, or send fewer: `--num-requests`",
    "connection refused": "the server has ended, or accepts no more connections: see its log",
    "connection lost": "the server has ended, or closed the connection: see its log",
}


def hint_on(failures: Mapping[str, Failures]) -> str | None:
    """The action to take on the most frequent kind."""
    kind = next(iter(failures), "")
    return _HINTS.get(kind) or _HINTS.get(" ".join(kind.split()[:2]))
