"""Resampling against the analytic signal."""

from __future__ import annotations

import numpy as np
import pytest

from omni_cli.inputs.resampling import resample


def tone(frequency: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def inner(samples: np.ndarray) -> np.ndarray:
    """Without the ends, where the signal begins and stops abruptly."""
    return samples[len(samples) // 5 : -len(samples) // 5]


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 44100, 48000, 96000])
@pytest.mark.parametrize("frequency", [50.0, 440.0, 3000.0])
def test_a_tone_stays_that_tone(rate: int, frequency: float) -> None:
    resampled = resample(tone(frequency, rate), rate, 16000)
    expected = tone(frequency, 16000)
    assert resampled.dtype == np.float32
    assert abs(len(resampled) - len(expected)) <= 1
    length = min(len(resampled), len(expected))
    np.testing.assert_allclose(inner(resampled[:length]), inner(expected[:length]), atol=1e-3)


@pytest.mark.parametrize("rate", [22050, 44100, 48000])
@pytest.mark.parametrize("frequency", [8050.0, 10_000.0])
def test_what_the_target_rate_cannot_hold_is_gone(rate: int, frequency: float) -> None:
    resampled = resample(tone(frequency, rate), rate, 16000)
    assert np.abs(inner(resampled)).max() < 1e-3


@pytest.mark.parametrize(("rate", "count", "expected"), [(48000, 9, 3), (48000, 10, 4), (8000, 1, 2), (44100, 1, 1)])
def test_length(rate: int, count: int, expected: int) -> None:
    assert resample(np.ones(count, np.float32), rate, 16000).shape == (expected,)


def test_rates_without_a_common_divisor() -> None:
    resampled = resample(tone(440.0, 16001, 0.1), 16001, 16000)
    np.testing.assert_allclose(inner(resampled), inner(tone(440.0, 16000, 0.1)), atol=1e-3)


def test_level_is_kept() -> None:
    resampled = resample(np.ones(4410, np.float32), 44100, 16000)
    np.testing.assert_allclose(inner(resampled), 1.0, atol=1e-3)


def test_same_rate_is_the_very_array() -> None:
    samples = tone(440, 16000)
    assert resample(samples, 16000, 16000) is samples
