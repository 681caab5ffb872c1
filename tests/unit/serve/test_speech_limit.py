"""The length of a recording that a server takes, by a small and by a large file."""

from __future__ import annotations

import asyncio
import io
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_cli.core.errors import InputError
from omni_cli.requests.media.reading import MediaReader
from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import MAX_AUDIO_S, MAX_SPEECH_S, Limits
from omni_cli.serve.media import decode_media


def hear(seconds: float, limits: Limits, method: str = "speech") -> int:
    async def decode() -> tuple[np.ndarray, int]:
        return await decode_media(lambda decoder: getattr(decoder, method)(file, "file"), limits, threads, ())

    with ThreadPoolExecutor(1) as threads, tempfile.SpooledTemporaryFile(max_size=2**20) as upload:
        file: Any = upload
        sound = io.BytesIO()
        soundfile.write(sound, np.zeros(round(seconds * 8000), np.float32), 8000, format="WAV", subtype="FLOAT")
        file.write(sound.getvalue())
        samples, rate = asyncio.run(decode())
    return round(len(samples) / rate)


@pytest.mark.parametrize("seconds", [3.0, 50.0, 320.0])
def test_a_recording_may_be_longer_than_other_audio(seconds: float) -> None:
    assert hear(seconds, Limits()) == seconds
    assert MAX_SPEECH_S >= 3600 > MAX_AUDIO_S


@pytest.mark.parametrize("seconds", [3.0, 50.0])
def test_the_error_of_a_recording_that_is_too_long_names_the_option(seconds: float) -> None:
    with pytest.raises(APIError) as raised:
        hear(seconds, Limits(max_audio_s=2.0))
    expected = "the audio in `file` is longer than 2 s, the maximum of this server's `--max-audio-seconds`"
    expected += " (cut it into shorter files)"
    assert (raised.value.status, raised.value.message) == (400, expected)


def test_a_video_as_long_as_the_limit_of_audio_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("the video in `file` is longer than 600 s, the maximum", hint="cut it")

    monkeypatch.setattr(MediaReader, "video", refuse)
    with pytest.raises(APIError) as raised:
        hear(1.0, Limits(max_audio_s=600.0), "video")
    assert raised.value.message == "the video in `file` is longer than 600 s, the maximum (cut it)"


def test_other_audio_keeps_its_limit() -> None:
    with pytest.raises(APIError, match="longer than 300 s"):
        hear(301.0, Limits(), "audio")
