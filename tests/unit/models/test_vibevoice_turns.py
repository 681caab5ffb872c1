"""The speakers of a text for VibeVoice."""

from __future__ import annotations

import pytest

from omni_cli.core.errors import InputError
from omni_cli.models.vibevoice.prompts import read_turns
from omni_cli.requests.outputs import GenerateRequest


def speakers(*numbers: int) -> list[str]:
    text = "\n".join(f"Speaker {number}: hello" for number in numbers)
    return [speaker for speaker, _ in read_turns(GenerateRequest("0", text))]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((0, 1, 2, 3), "0123"), ((1, 2), "12"), ((1, 2, 3, 4, 1), "01230"), ((4,), "3"), ((3, 2), "32")],
)
def test_four_speakers_are_numbered_from_0_or_from_1(numbers, expected):
    assert speakers(*numbers) == list(expected)


@pytest.mark.parametrize(("numbers", "unknown"), [((0, 4), 4), ((1, 5), 5), ((1, 2, 3, 4, 5), 4)])
def test_more_than_the_model_has_are_an_error(numbers, unknown):
    with pytest.raises(InputError, match=f"unknown speaker `{unknown}`"):
        speakers(*numbers)
