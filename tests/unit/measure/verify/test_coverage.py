"""Speech that has no words in a transcript, by the energy of the sound and the times of the parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omni_cli.measure.verify.coverage import Span, find_lost_speech, judge_coverage, make_long_request
from omni_cli.measure.verify.run_comparison import Answer
from omni_cli.models.scores import Expected

RATE = 16_000
SPEECH = np.sin(np.arange(2 * RATE, dtype=np.float32) * 0.1)
# Ten seconds: speech, a pause of two seconds that is not quite silent, speech, the same pause, speech.
SOUND = np.concatenate([SPEECH, 0.01 * SPEECH, SPEECH, 0.01 * SPEECH, SPEECH]), RATE


@pytest.mark.parametrize(
    ("spans", "lost_s"),
    [
        ([(0.0, 10.0)], 0.0),
        ([(0.0, 2.0), (4.0, 6.0), (8.0, 10.0)], 0.0),
        ([(0.1, 1.9), (4.1, 5.9), (8.2, 9.9)], 0.0),
        ([(0.0, 2.0), (8.0, 10.0)], 2.0),
        ([(0.0, 2.0), (5.0, 6.0), (8.0, 10.0)], 0.7),
        ([], 6.0),
    ],
)
def test_speech_without_words_is_what_is_loud_and_in_no_part(spans: list[Span], lost_s: float) -> None:
    assert find_lost_speech(SOUND, spans) == (pytest.approx(lost_s), pytest.approx(6.0))


def test_silence_has_no_speech_to_lose() -> None:
    assert find_lost_speech((np.zeros(RATE, np.float32), RATE), []) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("heard", "own", "verdict"),
    [
        ([(0.0, 10.0)], [(0.0, 10.0)], "equal"),
        ([(0.0, 2.0), (8.0, 10.0)], [(0.0, 10.0)], "different"),
        ([(0.0, 2.0), (8.0, 10.0)], [(0.0, 2.0), (8.0, 10.0)], "equal"),  # the model itself loses them
    ],
)
def test_what_the_reference_has_words_for_may_not_be_lost(heard: list[Span], own: list[Span], verdict: str) -> None:
    request = make_long_request()
    request = replace(request, media=replace(request.media, audio=(SOUND,)))
    answers = [Answer(request=request, spans=tuple(heard)), Answer(request=request)]
    expected = [Expected({}, spans=tuple(own))] * 2
    (row,) = judge_coverage("transcriber", answers, expected)
    assert (row.check, row.verdict, row.request) == ("coverage", verdict, "long speech")


def test_our_recording_has_more_than_one_window_of_speech() -> None:
    ((samples, rate),) = make_long_request().media.audio
    assert len(samples) / rate == 36.0
    assert find_lost_speech((samples, rate), [(0.0, 30.0)])[0] > 3.0
