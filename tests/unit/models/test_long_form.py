"""Long sounds: what a window's tokens leave to the next one, by transformers' own function, and its spectrogram."""

from __future__ import annotations

from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from support.transcriptions import voice  # noqa: E402

from omni_cli.models.transcription.long_form import Seeker, Spectrogram, Thresholds, TimeTokens  # noqa: E402
from omni_cli.requests.contents import TranscriptionOptions  # noqa: E402

CLOCK = TimeTokens(
    first_id=1000, frames_per_step=2, frame_s=0.01,
    size=3000, max_tokens=448, vocab_size=2600, end_ids=frozenset({999}), before_id=998,
)  # fmt: skip
OFF = Thresholds()
WINDOWS = {
    "one sentence": [1000, 5, 6, 1100],
    "two sentences": [1000, 5, 1100, 1100, 6, 1250],
    "left open": [1000, 5, 1100, 1120, 6, 7],
    "a pair at the end": [1000, 5, 1100, 1100, 6, 1250, 1250],
    "no time at the end": [1010, 5, 6, 7],
    "a time only": [1000],
    "three pairs": [1001, 1, 1100, 1110, 2, 3, 1200, 1201, 4, 1300, 1400],
}


def test_a_window_goes_on_from_its_last_time() -> None:
    parts, step = CLOCK.read_window(WINDOWS["left open"], 1234, 3000)
    (part,) = parts
    assert (part.start_s, part.end_s) == pytest.approx((12.34, 14.34))
    assert (part.token_ids, step) == ((1000, 5, 1100, 1120), 200)
    parts, step = CLOCK.read_window(WINDOWS["two sentences"], 0, 3000)
    assert [(part.start_s, part.end_s) for part in parts] == [(0.0, 2.0), (2.0, 5.0)] and step == 3000


def test_text_that_streams_is_never_taken_back() -> None:
    for ids in WINDOWS.values():
        kept = [token_id for part in CLOCK.read_window(ids, 0, 3000)[0] for token_id in part.token_ids]
        for end in range(len(ids)):
            settled = CLOCK.count_settled(ids[:end])
            assert ids[:settled] == kept[:settled]


@pytest.mark.parametrize("seconds", [0.3, 30.0, 71.37])
def test_a_spectrogram_in_windows_is_that_of_the_whole(seconds: float) -> None:
    samples, rate = voice(3, seconds, 16_000)
    extractor = transformers.WhisperFeatureExtractor()
    form = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    whole = torch.from_numpy(extractor(samples, sampling_rate=rate, return_tensors="np", **form)["input_features"][0])
    sound = Spectrogram(samples, extractor)
    assert sound.num_frames == len(samples) // 160
    for begin in (0, 7, max(0, sound.num_frames - 100)):
        window, expected = sound.window(begin, 3000), whole[:, begin : begin + 3000]
        torch.testing.assert_close(window[:, : expected.shape[1]], expected, rtol=0, atol=1e-5)
        assert window.shape == (80, 3000) and not window[:, expected.shape[1] :].any()


def seeker(thresholds: Thresholds = OFF, **asked: Any) -> Seeker:
    sound = Spectrogram(np.zeros(9000 * 160, np.float32), transformers.WhisperFeatureExtractor())
    options = TranscriptionOptions(**asked)
    return Seeker(sound, CLOCK, thresholds, options, [40, 41])


@pytest.mark.parametrize(
    ("asked", "second"),
    [
        ({}, []),
        ({"prompt_condition_type": "all-segments"}, [998, 40, 41]),
        ({"condition_on_prev_tokens": True}, [998, 40, 41, 1000, 5, 1100]),
        (
            {"condition_on_prev_tokens": True, "prompt_condition_type": "all-segments"},
            [998, 40, 41, 1000, 5, 1100],
        ),
    ],
)
def test_what_comes_before_each_window(asked: dict[str, Any], second: list[int]) -> None:
    sound = seeker(**asked)
    assert sound.before() == [998, 40, 41]
    parts = sound.take([1000, 5, 1100, 1100, 6, 999], -0.1, 0.0)
    assert parts is not None and [part.token_ids for part in parts] == [(1000, 5, 1100, 1100)]
    assert sound.begin == 200 and sound.before() == second


def test_a_prompt_that_silences_the_model_is_left_out() -> None:
    sound = seeker()
    assert sound.take([1000, 999], -0.1, 0.0) is None
    assert sound.before() == [] and sound.begin == 0
    assert sound.take([1000, 999], -0.1, 0.0) is not None and sound.begin == 3000
    other = seeker()
    assert other.take([1000, 5, 999], -1.5, 0.8) is None and other.before() == [], "a word for half a minute"
    assert seeker().take([1000, 5, 1050, 999], -1.5, 0.8), "it says that nothing follows"


def test_thresholds_are_those_of_the_checkpoint_and_off_without() -> None:
    assert Thresholds.of(transformers.GenerationConfig()).are_off
    config = transformers.GenerationConfig()
    config.temperature, config.logprob_threshold, config.no_speech_threshold = [0.0, 0.4], -1.0, 0.6
    thresholds = Thresholds.of(config)
    assert thresholds == Thresholds((0.0, 0.4), None, -1.0, 0.6)
    sound = seeker(thresholds=thresholds)
    assert sound.take([1000, 5, 1100, 999], -2.0, 0.1) is None and sound.temperature == 0.4
    assert sound.take([1000, 5, 1100, 999], -2.0, 0.1), "the last temperature's text stays"
    assert sound.take([1000, 5, 1100, 999], -2.0, 0.9) == [] and sound.begin == 6000, "silence"
