"""Recordings to transcribe: any length, shared between processes, and also without their end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Media
from omni_cli.requests.encoding import resample
from omni_cli.requests.media import audio as audio_module
from omni_cli.requests.media.audio import DecodedAudio, decode_audio
from omni_cli.requests.media.reading import load_audio, load_speech
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.shared_samples import SharedSamples, new_file, open_samples, share_samples
from omni_cli.stage.messages import AddRequest, decode_command, encode

RATE = 22_050


def noise(seconds: float) -> np.ndarray:
    return (0.1 * np.random.default_rng(3).standard_normal(round(seconds * RATE))).astype(np.float32)


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


def coded(samples: np.ndarray, form: str, codec: str, rate: int = RATE, **options: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=form, options=options) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="mono")
        layout = stream.format.name
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt" if layout == "flt" else "fltp", layout="mono")
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


def hear(content: bytes, *, max_s: float = 1000.0) -> tuple[np.ndarray, DecodedAudio]:
    file = new_file()
    audio = decode_audio(io.BytesIO(content), "sound", max_s=max_s, file=file)
    file.flush()
    return (open_samples(file, audio.num_written) if audio.num_written else audio.samples), audio


def test_a_sound_that_is_too_short_is_named() -> None:
    with pytest.raises(InputError, match="the sound is too short to be speech: 20 ms"):
        hear(wav(noise(0.02)))
    assert len(hear(wav(noise(0.026)))[0]) == 573


def test_long_speech_is_written_to_a_file_as_it_would_be_resampled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = noise(7.3)
    short, kept = hear(wav(samples))
    assert (kept.num_written, kept.sample_rate) == (0, RATE) and np.array_equal(short, samples)
    monkeypatch.setattr(audio_module, "LONG_SPEECH_S", 2.0)
    for content in (wav(samples), coded(samples, "mp3", "libmp3lame"), coded(samples, "mp4", "aac")):
        whole = decode_audio(io.BytesIO(content), "sound").samples
        found, audio = hear(content)
        expected = resample(whole, RATE, 16_000)
        assert audio.sample_rate == 16_000 and abs(len(found) - len(expected)) <= 1
        size = min(len(found), len(expected)) - 50  # MP4's padding is cut off before or after resampling
        np.testing.assert_allclose(found[:size], expected[:size], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wav, "the sound is truncated: it ends before the end that its header gives; its first 3.0 s are heard"),
        (lambda samples: coded(samples, "mp3", "libmp3lame"), "the sound is truncated: "),
        (
            lambda samples: coded(samples, "mp3", "libmp3lame", write_xing="0"),
            "the sound is truncated: its last frame is",
        ),
        (
            lambda samples: coded(samples, "ogg", "libopus", 24_000),
            "the sound is truncated: its last page is missing; ",
        ),
        (lambda samples: coded(samples, "flac", "flac"), "the sound is truncated: "),
        (lambda samples: coded(samples, "matroska", "aac"), "the sound is truncated: "),
    ],
    ids=["wav", "mp3", "mp3 without a count", "ogg", "flac", "matroska"],
)
def test_a_cut_end_keeps_what_was_heard_and_a_note_tells_it(make: Callable[[np.ndarray], bytes], message: str) -> None:
    content = make(noise(5.0))
    assert hear(content)[1].notes == ()
    found, audio = hear(content[: round(len(content) * 0.6)])
    assert 1.9 < len(found) / audio.sample_rate < 3.5
    assert any(message in note for note in audio.notes), audio.notes


def test_a_whole_mp3_with_a_tag_at_its_end_is_not_cut() -> None:
    assert hear(coded(noise(1.0), "mp3", "libmp3lame", write_xing="0") + b"TAG".ljust(128))[1].notes == ()


def test_a_sound_without_anything_to_hear_is_still_an_error() -> None:
    with pytest.raises(InputError, match=r"truncated: it ends before .*, and nothing of it can be read"):
        hear(coded(noise(2.0), "mp4", "aac")[:9000])
    for content in (b"not a sound", wav(noise(1.0))[:40]):
        with pytest.raises(InputError):
            hear(content)
    with pytest.raises(InputError, match="the sound is longer than 2 s, the maximum"):
        hear(wav(noise(2.1)), max_s=2.0)


def test_long_samples_are_shared_and_not_copied(tmp_path: Path) -> None:
    path, notes = tmp_path / "long.wav", list[str]()
    path.write_bytes(wav(noise(61.0)))
    samples, rate = load_speech(path, notes.append)
    whole, own_rate = load_audio(path, notes.append)
    assert isinstance(samples, SharedSamples) and rate == 16_000 and not notes
    assert np.array_equal(samples, resample(whole, own_rate, rate))
    message = encode(AddRequest(GenerateRequest("0", media=Media(audio=((samples, rate),)))))
    assert len(message) < 1000
    command = decode_command(message)
    assert isinstance(command, AddRequest)
    ((received, _),) = command.request.media.audio
    assert np.array_equal(received, samples)


def test_a_decoder_cannot_change_or_shorten_what_it_has_written() -> None:
    file = new_file()
    file.write(np.ones(100, np.float32).data)
    file.flush()
    with pytest.raises(ValueError, match="mmap length is greater"):
        share_samples(file, 101)
    assert share_samples(file, 100).sum() == 100
    with pytest.raises(OSError, match="not permitted"):
        file.truncate(0)
