"""Speech without words: seconds of a sound that are loud, and in no part of its transcript that has words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omni_cli.measure.verify.run_comparison import Answer
from omni_cli.models.scores import Expected
from omni_cli.records.verify_record import Row, Verdict
from omni_cli.requests.contents import Media, TranscriptionOptions
from omni_cli.requests.media.audio import read_speech
from omni_cli.requests.outputs import GenerateRequest

Span = tuple[float, float]
_STEP_S = 0.1
# Of the loudest step; quieter is a pause.
_LEVEL = 0.05
# Times that a model writes are this exact.
_MARGIN_S = 0.3
# Of speech that the reference has words for: a short word may be lost without a fault of the joining.
_MAX_LOST_S = 0.5
# More than one window of Whisper, which ends in an open sentence.
_LONG_S, _LEAD_S = 36.0, 2.6


def make_long_request() -> GenerateRequest:
    """Return our sentences, one after another, as a recording of more than one window."""
    rate = read_speech()[0][1]
    sentences = np.concatenate([samples for samples, _ in read_speech()])
    lead = np.zeros(int(_LEAD_S * rate), np.float32)
    samples = np.concatenate([lead, *[sentences] * (int(_LONG_S * rate / len(sentences)) + 1)])[: int(_LONG_S * rate)]
    options = TranscriptionOptions(language="en", timestamps=True, asked=True)
    return GenerateRequest("long speech", media=Media(audio=((samples, rate),)), transcription=options)


def find_lost_speech(sound: tuple[np.ndarray, int], spans: Sequence[Span]) -> tuple[float, float]:
    """Return the seconds of speech, by energy, that are in none of the spans, and those of all speech."""
    samples, rate = sound
    step = max(1, round(_STEP_S * rate))
    steps = samples[: len(samples) // step * step].reshape(-1, step)
    loudness = np.sqrt(np.square(steps, dtype=np.float32).mean(axis=1))
    is_speech = loudness > _LEVEL * loudness.max(initial=0.0)
    middle_s = (np.arange(len(steps)) + 0.5) * _STEP_S
    is_heard = np.zeros(len(steps), bool)
    for start_s, end_s in spans:
        is_heard |= (middle_s > start_s - _MARGIN_S) & (middle_s < end_s + _MARGIN_S)
    return float((is_speech & ~is_heard).sum() * _STEP_S), float(is_speech.sum() * _STEP_S)


def judge_coverage(stage: str, answers: Sequence[Answer], expected: Sequence[Expected | str]) -> list[Row]:
    """Return a row for each answer with times, beside the reference's own transcript of the same sound."""
    rows = []
    for answer, own in zip(answers, expected, strict=True):
        if answer.spans is None or isinstance(own, str) or own.spans is None:
            continue
        sound = answer.request.media.audio[0]
        lost_s, speech_s = find_lost_speech(sound, answer.spans)
        own_s, _ = find_lost_speech(sound, own.spans)
        verdict: Verdict = "different" if lost_s > own_s + _MAX_LOST_S else "equal"
        why = f"{lost_s:.1f} of {speech_s:.1f} s of speech have no words, {own_s:.1f} s in the reference's transcript"
        rows.append(Row(check="coverage", stage=stage, verdict=verdict, request=answer.request.request_id, why=why))
    return rows
