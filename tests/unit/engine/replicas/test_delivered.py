"""Events already sent to a client whose request is rerun."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.core.errors import OmniError
from omni_cli.engine.replicas.delivered import Delivered
from omni_cli.requests.contents import ToolCallDelta
from omni_cli.requests.events import AudioChunk, Event, TextDelta
from omni_cli.requests.outputs import OutputReady, StageProgress, TextOutput

RATE = 24_000


def texts(whole: str, cuts: list[int]) -> list[Event]:
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [TextDelta("r", whole[a:b]) for a, b in itertools.pairwise(places)]


def chunks(whole: np.ndarray, cuts: list[int]) -> list[Event]:
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [AudioChunk("r", whole[a:b], RATE) for a, b in itertools.pairwise(places)]


def sent(attempts: list[list[Event]]) -> list[Event]:
    """Return the client's events from several attempts, all but the last of which end early."""
    delivered = Delivered()
    events: list[Event] = []
    for attempt in attempts:
        delivered.begin()
        for event in attempt:
            events += delivered.rest(event)
    return events


CUTS = st.lists(st.integers(0, 60), max_size=6)


@given(st.text(min_size=1, max_size=40), CUTS, CUTS, CUTS, st.integers(0, 6), st.integers(0, 6))
def test_text_is_sent_once_wherever_replicas_ended_and_split_it(
    whole: str, first: list[int], second: list[int], third: list[int], ends: int, ends_again: int
) -> None:
    attempts = [texts(whole, first)[:ends], texts(whole, second)[:ends_again], texts(whole, third)]
    assert "".join(event.text for event in sent(attempts) if isinstance(event, TextDelta)) == whole


def calling(attempt: int, sizes: list[int]) -> list[Event]:
    """Reasoning, then a call whose id is random, with the log-probability of each letter, `sizes` letters at a time."""
    letters = [("reasoning", letter) for letter in "think"] + [("call", letter) for letter in '{"a": 1}']
    events: list[Event] = []
    while letters:
        size = sizes[len(events) % len(sizes)]
        now, letters = letters[:size], letters[size:]
        begins = not any(isinstance(event, TextDelta) and event.tool_calls for event in events)
        arguments = "".join(letter for what, letter in now if what == "call")
        call = ToolCallDelta(0, f"id {attempt}", "f", arguments) if begins else ToolCallDelta(0, arguments=arguments)
        reasoning = "".join(letter for what, letter in now if what == "reasoning")
        logprobs = tuple(((0, -1.0, letter),) for _, letter in now)
        calls = (call,) if arguments else ()
        events.append(TextDelta("r", "", logprobs=logprobs, reasoning=reasoning, tool_calls=calls))
    return events


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(SIZES, SIZES, st.integers(0, 13))
def test_reasoning_calls_and_their_log_probabilities_are_sent_once(
    first: list[int], second: list[int], end: int
) -> None:
    deltas = [event for event in sent([calling(0, first)[:end], calling(1, second)]) if isinstance(event, TextDelta)]
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert "".join(delta.reasoning for delta in deltas) == "think"
    assert "".join(call.arguments for call in calls) == '{"a": 1}'
    assert [call.name for call in calls if call.id] == ["f"]
    assert "".join(text or "" for delta in deltas for ((_, _, text),) in delta.logprobs) == 'think{"a": 1}'


@given(st.integers(1, 50), CUTS, CUTS, CUTS, st.integers(0, 6), st.integers(0, 6))
def test_audio_is_whole_and_once(
    length: int, first: list[int], second: list[int], third: list[int], ends: int, ends_again: int
) -> None:
    whole = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    attempts = [chunks(whole, first)[:ends], chunks(whole, second)[:ends_again], chunks(whole, third)]
    joined = np.concatenate([event.samples for event in sent(attempts) if isinstance(event, AudioChunk)])
    np.testing.assert_array_equal(joined, whole)


def test_an_output_is_sent_once_and_progress_always() -> None:
    output = OutputReady("r", TextOutput("hello", (1,), "stop"))
    progress = StageProgress("r", "thinker", 1, None, "token")
    assert sent([[progress, output], [progress, output]]) == [progress, output, progress]


def test_another_answer_cannot_follow_the_half_of_one() -> None:
    with pytest.raises(OmniError, match="another one answers differently"):
        sent([texts("hello world", [5])[:1], texts("help", [])])
    one, other = np.zeros(9, np.float32), np.ones(9, np.float32)
    with pytest.raises(OmniError, match="another one answers differently"):
        sent([chunks(one, [4])[:1], chunks(other, [4])])
