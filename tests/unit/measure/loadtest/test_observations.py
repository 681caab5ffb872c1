"""Chats that look for a cache."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.measure.loadtest.observations import has_prompt, new_prompt, parallel_limit, short_answer
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
        ((0.02, 0.03, 0.04, 0.06), None),  # one after another
        ((0.02, 0.32, 0.32, 0.32), None),  # the others are late for another reason
    ],
)
def test_a_limit_makes_the_next_begin_when_one_ends(firsts: tuple[float, ...], limit: int | None) -> None:
    assert parallel_limit(burst(*firsts)) == limit
