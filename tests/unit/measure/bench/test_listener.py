"""A listener's metrics on streams whose onset and stalls are known."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from omni_cli.measure.bench.listener import BUFFER_S, find_onset, listen


def tone(seconds: float, rate: int, amplitude: float = 0.3) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def arrivals_of(*pieces: tuple[float, float], rate: int = 24_000) -> list[tuple[float, int]]:
    """Return the arrivals of pieces (time, seconds of sound)."""
    ends = itertools.accumulate(round(seconds * rate) for _, seconds in pieces)
    return [(at_s, end) for (at_s, _), end in zip(pieces, ends, strict=True)]


@pytest.mark.parametrize("seed", range(100))
def test_a_known_onset_and_known_stalls(seed: int) -> None:
    """Noise below the threshold, then a voice; the pieces arrive in time, or so late that playback stalls."""
    draw = np.random.default_rng(seed)
    rate, channels = int(draw.choice([8000, 16_000, 22_050, 24_000, 44_100, 48_000])), int(draw.integers(1, 3))
    silence, voice = round(draw.uniform(0, 1.5) * rate), tone(1.0, rate, draw.uniform(0.02, 0.9))
    mono = np.concatenate([draw.normal(0, 0.0008, silence).astype(np.float32), voice])
    samples = mono if channels == 1 else np.stack([0 * mono, mono], axis=1)
    ends = np.unique([*draw.integers(1, len(mono), draw.integers(0, 12)), len(mono)])
    start_s, at_s = draw.uniform(0, 1000), draw.uniform(0, 1)
    arrivals: list[Any] = []
    stalls: list[float] = []
    heard_s, played_until = None, start_s + at_s + BUFFER_S
    unbuffered_until = start_s + at_s
    for begin, end in itertools.pairwise([0, *ends.tolist()]):
        is_late = bool(begin) and draw.random() < 0.3
        stall_s = draw.uniform(0.1, 0.5) if is_late else 0.0
        now = played_until - BUFFER_S + stall_s if is_late else played_until - draw.uniform(0, BUFFER_S)
        now = start_s + at_s if not begin else max(now + BUFFER_S * is_late, arrivals[-1][0])
        stalls += [now + BUFFER_S - played_until] if is_late else []
        played_until = (now + BUFFER_S if is_late else played_until) + (end - begin) / rate
        plays = max(now, unbuffered_until)
        unbuffered_until = plays + (end - begin) / rate
        if heard_s is None and end > silence:
            heard_s = plays + (silence - begin) / rate - start_s
        arrivals.append((now, end))
    found = listen(samples, rate, arrivals, start_s)
    assert found["heard_s"] == pytest.approx(heard_s, abs=0.01)
    assert found["underruns"] == len(stalls) and found["stutter_s"] == pytest.approx(sum(stalls), abs=1e-6)
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(arrivals)]
    assert found["longest_gap_s"] == (max(gaps) if gaps else None)


def test_silence_that_was_sent_early_is_played_first() -> None:
    rate = 24_000
    samples = np.concatenate([np.zeros(round(0.4 * rate), np.float32), tone(1.0, rate)])
    assert listen(samples, rate, arrivals_of((0.005, 0.4), (0.305, 1.0)))["heard_s"] == pytest.approx(0.405, abs=1e-3)
    assert listen(samples, rate, arrivals_of((0.3, 0.4), (0.9, 1.0)))["heard_s"] == pytest.approx(0.9, abs=1e-3)


def test_a_stall_is_as_long_as_what_was_missing() -> None:
    found = listen(tone(1.2, 24_000), 24_000, arrivals_of((1.0, 0.2), (1.6, 1.0)), 0.5)
    assert found == pytest.approx(
        {"heard_s": 0.5, "stutter_s": 0.4, "underruns": 1, "longest_gap_s": 0.6}, abs=1e-3
    )  # fmt: skip


def test_a_buffer_covers_jitter_also_after_a_stall() -> None:
    late = [(0.02 * number + 0.015 * (number % 2) + 0.5 * (number >= 50), 0.02) for number in range(100)]
    found = listen(tone(2.0, 24_000), 24_000, arrivals_of(*late))
    assert found["underruns"] == 1 and found["stutter_s"] == pytest.approx(0.5)


def test_a_sound_that_nobody_hears_and_none() -> None:
    quiet = listen(tone(1.0, 24_000, 0.002), 24_000, arrivals_of((1.0, 1.0)))
    assert quiet == {"heard_s": None, "stutter_s": 0.0, "underruns": 0.0, "longest_gap_s": None}
    assert listen(np.zeros(0, np.float32), 24_000, []) == {}
    assert listen(tone(1.0, 24_000), 24_000, [(1.0, 0)]) == {}


def test_the_onset_is_the_sample_itself() -> None:
    samples = np.concatenate([np.zeros(50_001, np.float32), np.full(24_000, 0.1, np.float32)])
    assert find_onset(samples, 24_000) == 50_001
    assert find_onset(samples[:50_001], 24_000) is None
