"""Speech that has no words in a transcript, by the energy of the sound and the times of the parts."""

from __future__ import annotations

from dataclasses import replace

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import transformers  # noqa: E402

from omni_cli.measure.verify.checks import Span, find_lost_speech, judge_coverage, make_long_request  # noqa: E402
from omni_cli.measure.verify.run_comparison import Answer  # noqa: E402
from omni_cli.models.scores import Expected  # noqa: E402
from omni_cli.models.transcription.long_form import Seeker, Spectrogram, Thresholds, TimeTokens  # noqa: E402
from omni_cli.requests.contents import Segment, TranscriptionOptions  # noqa: E402
from omni_cli.requests.encoding import resample  # noqa: E402
from omni_cli.requests.media.audio import read_speech  # noqa: E402

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


CLOCK = TimeTokens(
    first_id=1000, frames_per_step=2, frame_s=0.01,
    size=3000, max_tokens=448, vocab_size=2600, end_ids=frozenset({999}), before_id=998,
)  # fmt: skip


def write_sentences(begin_s: float) -> list[int]:
    """Return the tokens of an exact Whisper in a window: the times of each sentence, the last one left open."""
    ids, start_s = [], 2.6
    while start_s < begin_s + 30:
        for samples, rate in read_speech():
            first, last = (round((time_s - begin_s) / 0.02) for time_s in (start_s, start_s + len(samples) / rate))
            start_s += len(samples) / rate
            if last > 0 and first < 1500:
                ids += [1000 + max(first, 0), 5, *([1000 + last] if last <= 1500 else [])]
    return ids


def hear(sound: Spectrogram) -> list[Span]:
    """Return the times of the parts that are kept of all windows."""
    seeker, parts = Seeker(sound, CLOCK, Thresholds(), TranscriptionOptions(), []), list[Segment]()
    while seeker.num_frames:
        parts += seeker.take([*write_sentences(seeker.begin * 0.01), 999], None, None) or []
    return [(part.start_s, part.end_s) for part in parts]


def test_a_join_at_fixed_cuts_loses_speech_of_our_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence that the window's end leaves open is lost where the next window begins at that end."""
    request = make_long_request()
    samples = resample(*request.media.audio[0], 16_000)
    sound = Spectrogram(samples, transformers.WhisperFeatureExtractor())
    own, read = hear(sound), TimeTokens.read_window
    monkeypatch.setattr(TimeTokens, "read_window", lambda *args: (read(*args)[0], args[-1]))
    for spans, verdict in ((own, "equal"), (hear(sound), "different")):
        (row,) = judge_coverage(
            "transcriber", [Answer(request=request, spans=tuple(spans))], [Expected({}, spans=tuple(own))]
        )
        assert row.verdict == verdict
