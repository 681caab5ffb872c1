"""Sampling in effect, and who named it."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.requests.sampling import (
    SamplingValues,
    default_temperature,
    describe,
    name_sources,
    names_drawing,
    with_request,
)


def in_effect(request: dict[str, Any], profile: dict[str, Any], checkpoint: dict[str, Any]) -> SamplingValues:
    temperature = {"temperature": default_temperature({**checkpoint, **profile, **request}, makes_text=True)}
    drawn = {**temperature, **checkpoint, **profile, **request}["temperature"]
    return name_sources(drawn, request=request, profile=profile, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("request_", "profile", "checkpoint", "text"),
    [
        ({}, {}, {}, "greedy (default)"),
        ({"temperature": 0.7}, {}, {}, "temperature 0.7 (request)"),
        ({"top_p": 0.9}, {}, {}, "temperature 1 (default), top_p 0.9 (request)"),
        ({}, {}, {"temperature": 0.2, "top_p": 0.9}, "temperature 0.2, top_p 0.9 (checkpoint)"),
        ({}, {"temperature": 0.0}, {"top_p": 0.9}, "greedy (profile)"),
        ({"temperature": 1.0}, {"temperature": 0.4}, {"top_p": 0.8}, "temperature 1 (request), top_p 0.8 (checkpoint)"),
        ({"max_tokens": 3}, {}, {"repetition_penalty": 1.05}, "greedy (default), repetition_penalty 1.05 (checkpoint)"),
    ],
)  # fmt: skip
def test_the_first_that_names_a_parameter_counts_and_without_any_text_is_greedy(
    request_: dict[str, Any], profile: dict[str, Any], checkpoint: dict[str, Any], text: str
) -> None:
    named = in_effect(request_, profile, checkpoint)
    assert describe(named) == text
    # What a user sees before the request is what the stage reports after it.
    assert describe(with_request(in_effect({}, profile, checkpoint), request_)) == text


def test_codes_of_sound_are_drawn_where_nobody_names_a_temperature() -> None:
    assert default_temperature({}, makes_text=False) == 1.0


def test_the_greed_of_a_task_is_not_the_checkpoints() -> None:
    named = name_sources(0.0, request={}, profile={}, checkpoint={"temperature": 0.7})
    assert named["temperature"] == {"value": 0.0, "source": "default"}


def test_a_stage_that_draws_no_tokens_has_no_sampling() -> None:
    assert with_request({}, {"temperature": 1.0}) == {} and describe({}) == ""


def test_a_limit_of_tokens_does_not_ask_for_drawing() -> None:
    assert not names_drawing({"max_tokens": 3, "stop": "a", "top_p": None})
