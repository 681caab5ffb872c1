"""Chats that look for a cache."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.measure.loadtest.observations import has_prompt, new_prompt, short_answer

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
def test_what_is_no_chat_is_not_asked_for(messages: object) -> None:
    assert not has_prompt({"messages": messages}) and has_prompt({"messages": [ASKED]})
