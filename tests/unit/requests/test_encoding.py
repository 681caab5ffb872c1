"""Speech at another sample rate, streamed and whole."""

from __future__ import annotations

import io
from itertools import pairwise

import av
import numpy as np
import pytest

from omni_cli.requests.encoding import AudioEncoder, encode_audio, encoder_rate

OWN_RATE = 24_000


def speech(num_samples: int) -> np.ndarray:
    times = np.arange(num_samples) / OWN_RATE
    return (0.4 * np.sin(2 * np.pi * 440 * times) + 0.1 * np.sin(2 * np.pi * 3000 * times)).astype(np.float32)


def streamed(samples: np.ndarray, ends: list[int], audio_format: str, rate: int) -> bytes:
    encoder = AudioEncoder(OWN_RATE, audio_format, to_rate=rate)
    pieces = [encoder.add(samples[start:end]) for start, end in pairwise([0, *ends, len(samples)])]
    return b"".join(pieces) + encoder.finish()


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, OWN_RATE, 44_100, 48_000])
@pytest.mark.parametrize("ends", [[], [1], [7, 24_000, 24_001, 60_000]])
def test_a_stream_has_the_samples_of_the_whole(rate: int, ends: list[int]) -> None:
    samples = speech(70_001)
    whole = encode_audio(samples, OWN_RATE, "pcm", rate)
    assert streamed(samples, ends, "pcm", rate) == whole
    assert len(whole) // 2 == pytest.approx(len(samples) * rate / OWN_RATE, abs=1)


@pytest.mark.parametrize("audio_format", ["wav", "flac", "mp3", "opus", "aac"])
def test_a_file_states_its_rate_and_lasts_as_long(audio_format: str) -> None:
    samples = speech(2 * OWN_RATE)
    for data in (encode_audio(samples, OWN_RATE, audio_format, 16_000), streamed(samples, [999], audio_format, 16_000)):
        with av.open(io.BytesIO(data)) as file:
            frames = list(file.decode(audio=0))
        # Opus is always played at 48 kHz; frames are whole, and MP3 and AAC have the encoder's delay.
        assert {frame.sample_rate for frame in frames} == {48_000 if audio_format == "opus" else 16_000}
        assert sum(frame.samples for frame in frames) / frames[0].sample_rate == pytest.approx(2, abs=0.2)


def test_a_rate_beyond_an_encoders_is_its_highest() -> None:
    assert [encoder_rate("libmp3lame", rate) for rate in (24_000, 96_000)] == [24_000, 48_000]
    assert [encoder_rate("libopus", rate) for rate in (22_050, 96_000)] == [24_000, 48_000]
