"""Chats that look for a cache."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest

from omni_cli.measure.loadtest.observations import (
    find_stair,
    has_prompt,
    limit_of_stairs,
    new_prompt,
    parallel_limit,
    served_at_once,
    short_answer,
)
from omni_cli.openai_api.client import Outcome
from omni_cli.openai_api.reading import ServerAnswer

SYSTEM, CALL = {"role": "system", "content": "be short"}, {"role": "assistant", "content": None, "tool_calls": []}
ASKED, RESULT = {"role": "user", "content": "q"}, {"role": "tool", "content": [{"type": "text", "text": "r"}]}


@pytest.mark.parametrize(
    ("messages", "changed"), [([ASKED], 0), ([SYSTEM, ASKED, CALL, RESULT], 1), ([CALL], 0), ([SYSTEM, RESULT], 1)]
)
def test_a_new_prompt_is_new_from_its_first_question_on(messages: list[dict[str, Any]], changed: int) -> None:
    new = new_prompt({"messages": messages, "model": "m"})["messages"]
    assert [place for place, message in enumerate(new) if message != messages[place]] == [changed]
    assert len(new) == len(messages) and new[changed]["role"] == messages[changed]["role"]


@pytest.mark.parametrize(
    ("asked", "short"),
    [
        ({}, {"max_completion_tokens": 4}),
        ({"max_completion_tokens": 2}, {"max_completion_tokens": 2}),
        ({"max_tokens": 100}, {"max_tokens": 4}),
        ({"max_completion_tokens": "5"}, {"max_completion_tokens": 4}),
    ],
)
def test_answers_that_look_for_a_cache_are_short(asked: dict[str, Any], short: dict[str, Any]) -> None:
    assert short_answer(asked) == short


@pytest.mark.parametrize("messages", [None, "hi", [], ["hi"], [ASKED, None]])
def test_only_a_chat_has_a_prompt(messages: object) -> None:
    assert not has_prompt({"messages": messages}) and has_prompt({"messages": [ASKED]})


def burst(*firsts: float, answer_s: float = 0.03) -> list[Outcome]:
    """Requests that are sent at 0, with the times of their first output, which takes until `answer_s` later."""
    return [
        Outcome(0.0, 0.0, first + answer_s, ServerAnswer(first_at=first, last_at=first + answer_s)) for first in firsts
    ]


@pytest.mark.parametrize(
    ("firsts", "limit"),
    [
        ((0.02, 0.021, 0.022, 0.02), None),
        ((0.02, 0.021, 0.071, 0.072), 2),
        ((0.02, 0.07, 0.12, 0.17), 1),
        ((0.02, 0.32, 0.37, 0.42), 1),  # a machine that stalled once
        ((0.02, 0.03, 0.04, 0.06), None),  # one after another
        ((0.02, 0.32, 0.32, 0.32), None),  # the others are late for another reason
    ],
)
def test_a_limit_makes_the_next_begin_when_one_ends(firsts: tuple[float, ...], limit: int | None) -> None:
    assert parallel_limit(burst(*firsts)) == limit


Serve = Callable[[list[float], random.Random], list[tuple[float, float]]]
"""Returns when requests that arrive at these times have their first output, and their last."""


def with_places(limit: int, slower: float = 0.0) -> Serve:
    """So many at a time, or any number; each begins after 0.05 s and lasts for 0.1 to 0.3, the more it serves by
    `slower`."""

    def serve(arrivals: list[float], noise: random.Random) -> list[tuple[float, float]]:
        places, spans = [0.0] * limit, []
        for due in arrivals:
            begins = max(due, heapq.heappop(places))
            pace = 1 + slower * sum(end > begins for end in places)
            first = begins + 0.05 * pace + noise.uniform(0, 0.003)
            spans.append((first, first + noise.uniform(0.1, 0.3) * pace))
            heapq.heappush(places, spans[-1][1] + noise.uniform(0, 0.003))
        return spans

    return serve


def in_turn(answer_s: float) -> Serve:
    """One after another until the first output, each for 0.05 s."""

    def serve(arrivals: list[float], noise: random.Random) -> list[tuple[float, float]]:
        turns, now_s = [], 0.0
        for due in arrivals:
            now_s = max(now_s, due) + 0.05
            turns.append((now_s + noise.uniform(0, 0.003), now_s + answer_s))
        return turns

    return serve


@pytest.mark.parametrize(
    ("serve", "rate", "limit"),
    [
        *((with_places(limit), 8.0 * limit, limit) for limit in (1, 2, 4)),
        *((with_places(limit), 1000.0, limit) for limit in (1, 2, 4)),
        (with_places(4, slower=0.1), 20.0, 4),
        *((with_places(1000, slower), rate, None) for slower in (0.0, 0.05, 0.3) for rate in (5.0, 20.0, 100.0)),
        *(
            (in_turn(answer_s), rate, None)
            for answer_s in (0.04, 0.06, 0.1, 0.15, 0.3)
            for rate in (15.0, 30.0, 1000.0)
        ),
    ],
)
@pytest.mark.parametrize("stalls", [0.0, 0.1])
def test_a_limit_in_an_open_loop_is_a_stair_of_the_waits(
    serve: Serve, rate: float, limit: int | None, stalls: float
) -> None:
    """Also where a machine that stalls makes some of the requests begin later than they would."""
    stairs = []
    for seed in range(12):
        noise, stalled = random.Random(seed), random.Random(100 + seed)
        arrivals = sorted(noise.uniform(0, 40 / rate) for _ in range(40))
        outcomes = []
        for due, (first, end) in zip(arrivals, serve(arrivals, noise), strict=True):
            late_s = (end - first) / 3 if stalled.random() < stalls else 0.0
            outcomes.append(Outcome(due, due, end, ServerAnswer(first_at=first + late_s, last_at=end)))
        stairs.append(find_stair(outcomes))
        assert limit is None or served_at_once(outcomes) <= limit
    assert [limit_of_stairs(stairs[at : at + 4]) for at in (0, 4, 8)] == [limit] * 3
    assert limit_of_stairs(stairs[:1]) is None
