"""Requests that failed: what is said of them, and what can be done about them."""

from __future__ import annotations

from collections.abc import Mapping

from omni_cli.record import Failures

_HINTS = {
    "HTTP 400": "the server refuses the request as it is: see `--no-ignore-eos`, `--input-len` and `--extra-body`",
    "HTTP 401": "give a key with OPENAI_API_KEY or `--api-key`",
    "HTTP 403": "give a key with OPENAI_API_KEY or `--api-key`",
    "HTTP 404": "see which model and which endpoint it has: `--model`, `--endpoint`",
    "HTTP 429": "send less at once, or let the server take more (`omni serve --max-requests`)",
    "HTTP 503": "the server starts, or starts a part of itself again: wait until it is ready",
    "timeout": "give requests longer: `--request-timeout`",
    "too many open files in the client": "raise the limit with `ulimit -n`, or send fewer: `--num-requests`",
    "connection refused": "the server has ended, or takes no more connections: see its log",
    "connection lost": "the server has ended, or closed the connection: see its log",
}


def sentence(failures: Mapping[str, Failures]) -> str:
    """`10 x HTTP 429 queue_full, 2 x timeout; the first one: ...`, from the most frequent kind on."""
    first = next(iter(failures.values())).first
    return ", ".join(f"{found.count} x {kind}" for kind, found in failures.items()) + f"; the first one: {first}"


def hint_on(failures: Mapping[str, Failures]) -> str | None:
    """What to do about the most frequent kind."""
    kind = next(iter(failures), "")
    return _HINTS.get(kind) or _HINTS.get(" ".join(kind.split()[:2]))
