"""A model's wrong answer to one request fails that request.

Real parts of vLLM and the real token2wav; what its model returns is spoilt on the way to the runner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.answers import answer_of


@pytest.fixture(scope="module")
def answers(tiny_omni_path: Path, tmp_path_factory: Any) -> dict[str, Any]:
    return answer_of("wrong_outputs", {"model": str(tiny_omni_path)}, tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nothing", "the model returned NoneType, not a tensor"),
        ("shape", "of float32, which is not a waveform"),
        ("dtype", "of int64, which is not a waveform"),
        ("empty", "the model made (0,) of float32, which is not a waveform"),
    ],
)
def test_one_wrong_answer_fails_its_request_alone(answers, wrong, message):
    alone, made = answers["alone"], answers["rounds"][wrong]
    assert made.pop("second").endswith(message)
    assert made == {"first": alone["first"], "third": alone["third"]}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("count", "the model returned 2 tensors for 3 requests"),
        ("text", "a diffusion model returns a tensor, a list or a dict, not str"),
    ],
)
def test_unassignable_answers_fail_their_batch_and_the_stage_continues(answers, wrong, message):
    assert answers["rounds"][wrong] == dict.fromkeys(("first", "second", "third"), message)


def test_nothing_is_left_of_any(answers):
    assert answers["after"] == answers["alone"] and len(answers["alone"]) == 3
    assert answers["left"] == []
