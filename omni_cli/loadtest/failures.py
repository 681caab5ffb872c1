"""Hints on requests that failed."""

from __future__ import annotations

from collections.abc import Mapping

from omni_cli.record import Failures

_HINTS = {
    "HTTP 400": "the server rejects the request: try `--no-ignore-eos`, `--input-len` or `--extra-body`",
    "HTTP 401": "set OPENAI_API_KEY, or pass `--api-key`",
    "HTTP 403": "set OPENAI_API_KEY, or pass `--api-key`",
    "HTTP 404": "choose a model and an endpoint that it has: `--model`, `--endpoint`",
    "HTTP 429": "send fewer requests at once, or raise the server's limit (`omni serve --max-requests`)",
    "HTTP 503": "the server is starting or restarting a stage: wait until it is ready",
    "timeout": "raise `--request-timeout`",
    "too many open files in the client": "raise the limit with `ulimit -n`, or send fewer: `--num-requests`",
    "connection refused": "the server has stopped or accepts no more connections: see its log",
    "connection lost": "the server has stopped or closed the connection: see its log",
}


def hint_on(failures: Mapping[str, Failures]) -> str | None:
    """Return the action to take on the most frequent kind."""
    kind = next(iter(failures), "")
    return _HINTS.get(kind) or _HINTS.get(" ".join(kind.split()[:2]))
