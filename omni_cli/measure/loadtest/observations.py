"""Observations of a server beside its figures: a cache of prompts, and a limit of requests that it serves at once."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from omni_cli.openai_api.client import Outcome
from omni_cli.stats.race import student_quantile

Canaries = Literal["new", "own"]
"""Prompts that a server is asked for: new ones, or also those of the run."""

NUM_CANARIES = 6
_CANARY_TOKENS = 4
_SAME_PAUSE, _LONGEST_PAUSE = 0.8, 2.0
_FEW_SERVED, _FEW_QUEUED, _FITS, _CLEARLY, _MOST = 8, 4, 0.6, 0.75, 0.85


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
    to warm up for several requests begins the next ones long after that end. Of the waits for an end, the lower half
    counts: a machine that stalls makes some of them longer.
    """
    times = _service_times(burst)
    firsts = sorted(first for _, first, _ in times)
    if len(firsts) < len(burst) or len(firsts) < 2:
        return None
    began_s, ended_s = min(due for due, _, _ in times), min(end for _, _, end in times)
    served = sum(first < ended_s for first in firsts)
    if not 0 < served < len(firsts):
        return None
    step_s, pause_s, answer_s = firsts[served] - firsts[served - 1], firsts[0] - began_s, ended_s - firsts[0]
    ends = sorted(end for _, _, end in times)
    waited_s = statistics.median_low(first - end for first, end in zip(firsts[served:], ends, strict=False))
    has_waited = _SAME_PAUSE * pause_s <= waited_s <= _LONGEST_PAUSE * pause_s + answer_s
    return served if has_waited and step_s > answer_s / 2 else None


class Stair(NamedTuple):
    """Requests of a window that were served at once, and for each reason to begin (at once, when a place is free, after
    the one before) how many began then, of those for which it can be the reason."""

    limit: int
    at_once: tuple[int, int]
    by_place: tuple[int, int]
    by_turn: tuple[int, int]


def find_stair(outcomes: Collection[Outcome]) -> Stair | None:
    """Return what the waits of a window tell of a limit: below it requests begin when they arrive, and from it on when
    one of those before them has ended. None if they are too few, or too short, to tell."""
    times = _service_times(outcomes)
    if len(times) < len(outcomes) or len(times) < _FEW_SERVED:
        return None
    firsts, ends = sorted(first for _, first, _ in times), list[float]()
    pause_s = min(first - due for due, first, _ in times)
    if statistics.median(end - first for _, first, end in times) < pause_s / 4:
        return None
    turn_s = min(pause_s, statistics.median(later - first for first, later in itertools.pairwise(firsts)))
    limit = served_at_once(outcomes, _SAME_PAUSE * pause_s)
    at_once, by_place, by_turn = list[float](), list[float](), list[float]()
    before_s = -math.inf
    for due, first, end in times:
        if len(ends) < limit or ends[-limit] <= due:
            at_once.append(first - due - pause_s)
        else:
            by_place.append(first - ends[-limit] - pause_s)
            by_turn.append(first - max(due + pause_s, before_s + turn_s))
        bisect.insort(ends, end)
        before_s = max(before_s, first)
    near_s = (ends[-1] - ends[0]) / (len(ends) - 1) / 4
    counts = [(sum(abs(late_s) < near_s for late_s in lates), len(lates)) for lates in (at_once, by_place, by_turn)]
    return Stair(limit, *counts)


def limit_of_stairs(stairs: Sequence[Stair | None]) -> int | None:
    """Return the limit of most windows, of which there are two or more, if the requests of all of them have its stair:
    a machine that stalls for a moment takes some out of one.

    A server that begins requests one after another, or is slower the more it serves, has no such stair.
    """
    limit = usual_limit([stair and stair.limit for stair in stairs])
    same = [stair[1:] for stair in stairs if stair is not None and stair.limit == limit]
    if not same:
        return None
    sums = [[sum(column) for column in zip(*counts, strict=True)] for counts in zip(*same, strict=True)]
    if sums[1][1] < _FEW_QUEUED * len(same):
        return None
    at_once, by_place, by_turn = ((fitting + 1) / (began + 1) for fitting, began in sums)
    return limit if at_once > _CLEARLY and by_place > _FITS and by_turn < _CLEARLY * by_place else None


def served_at_once(outcomes: Iterable[Outcome], pause_s: float = 0.0) -> int:
    """Return how many requests were answered at the same time: each from `pause_s` before its first output, and for
    most of its answer, since ends are noticed late."""
    spans = [(first - pause_s, first + _MOST * (end - first)) for _, first, end in _service_times(outcomes)]
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(step for _, step in steps), default=0)


def _service_times(outcomes: Iterable[Outcome]) -> list[tuple[float, float, float]]:
    """Return when the answered requests were due, when they began and when they ended, in the order of the first."""
    found = [(item.due_s, item.answer.first_at or item.answer.audio_at, item) for item in outcomes if item.answer]
    return sorted((due, first, item.ended_s) for due, first, item in found if first is not None)


def usual_limit(limits: Sequence[int | None]) -> int | None:
    """Return the limit that most bursts show, of which there are two or more; None if most show none."""
    if len(limits) < 2:
        return None
    ((limit, times),) = Counter(limits).most_common(1)
    return limit if times > len(limits) / 2 else None
