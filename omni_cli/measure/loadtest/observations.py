"""Observations of a server beside its figures: a cache of prompts, and a limit of requests that it serves at once."""

from __future__ import annotations

import math
import statistics
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from omni_cli.openai_api.client import Outcome
from omni_cli.stats.race import student_quantile

Canaries = Literal["new", "own"]
"""Prompts that a server is asked for: new ones, or also those of the run."""

NUM_CANARIES = 6
_CANARY_TOKENS = 4
_SAME_PAUSE, _LONGEST_PAUSE = 0.8, 2.0


def has_prompt(body: Mapping[str, Any]) -> bool:
    """Return whether the body is that of a chat: fields of a file, or of `--extra-body`, may be anything."""
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and all(isinstance(item, dict) for item in messages)


def new_prompt(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat like this one that no server has seen from its first question on; what the chats of a file begin
    with is common to them."""
    nonce, messages = f"{uuid.uuid4().hex[:8]} ", list(body["messages"])
    place = next((place for place, message in enumerate(messages) if message.get("role") == "user"), -1)
    content = messages[place].get("content") or ""
    new = nonce + content if isinstance(content, str) else [{"type": "text", "text": nonce}, *content]
    messages[place] = {**messages[place], "content": new}
    return {**short_answer(body), "messages": messages}


def short_answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat with an answer of a few tokens: only its first one counts."""
    name = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
    asked = body.get(name)
    return {**body, name: min(asked, _CANARY_TOKENS) if type(asked) is int and asked > 0 else _CANARY_TOKENS}


async def ask_canaries(
    bodies: Sequence[Mapping[str, Any]], post: Callable[[Mapping[str, Any]], Awaitable[Outcome]], *, asks_own: bool
) -> dict[str, tuple[float, float, float]]:
    """Return by how much prompts are answered faster than new ones, as (low, ratio, high) with 95 %: `again` if the
    server has just answered them, and with `asks_own` `own`, those of these chats, which an earlier run may have sent.

    One request at a time, each chat in two or three forms. Empty if one fails.
    """
    logs: dict[str, list[float]] = {"again": [], **({"own": []} if asks_own else {})}
    await post(new_prompt(bodies[0]))  # opens the connection
    for body in bodies:
        new = new_prompt(body)
        waits = [_first_output_s(await post(item)) for item in (new, new, short_answer(body))[: 1 + len(logs)]]
        first, *others = waits
        for name, wait_s in zip(logs, others, strict=True):
            if not first or not wait_s:
                return {}
            logs[name].append(math.log(first / wait_s))
    return {name: _interval(values) for name, values in logs.items()}


def _first_output_s(outcome: Outcome) -> float | None:
    first_at = None if outcome.answer is None else outcome.answer.first_at
    return None if first_at is None else first_at - outcome.sent_s


def _interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return Student's interval of a ratio."""
    centre = statistics.fmean(logs)
    half = 0.0
    if len(logs) > 1:
        half = student_quantile(0.025, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(centre - half), math.exp(centre), math.exp(centre + half)


def parallel_limit(burst: Sequence[Outcome]) -> int | None:
    """Return how many requests of a burst were served at once, if the next began only when one of them ended.

    A server that is slow to begin requests, one after another, has no such step: its waits grow evenly. One that has
    to warm up for several requests begins the next ones long after that end.
    """
    answers = [(item.answer.first_at, item.ended_s) for item in burst if item.answer is not None]
    firsts = sorted(first for first, _ in answers if first is not None)
    if len(firsts) < len(burst) or len(firsts) < 2:
        return None
    began_s, ended_s = min(item.due_s for item in burst), min(end for _, end in answers)
    served = sum(first < ended_s for first in firsts)
    if not 0 < served < len(firsts):
        return None
    step_s, pause_s, answer_s = firsts[served] - firsts[served - 1], firsts[0] - began_s, ended_s - firsts[0]
    has_waited = _SAME_PAUSE * pause_s <= firsts[served] - ended_s <= _LONGEST_PAUSE * pause_s + answer_s
    return served if has_waited and step_s > answer_s / 2 else None


def usual_limit(limits: Sequence[int | None]) -> int | None:
    """Return the limit that most bursts show, of which there are two or more; None if most show none."""
    if len(limits) < 2:
        return None
    ((limit, times),) = Counter(limits).most_common(1)
    return limit if times > len(limits) / 2 else None
