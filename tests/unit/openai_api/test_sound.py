"""Sounds of answers: their rate, their samples, and answers that are not what was asked for."""

from __future__ import annotations

import base64
import io
import json
import struct
import wave

import numpy as np
import pytest

from omni_cli.core.errors import AnswerError
from omni_cli.openai_api.reading import ChatReader, ServerAnswer, SpeechReader
from omni_cli.openai_api.sound import SAMPLE_RATE, find_format
from omni_cli.requests.encoding import encode_audio, encode_wav

VOICE = (0.3 * np.sin(np.arange(9600) / 10)).astype(np.float32)
PCM = (VOICE * 2**15).astype("<i2").tobytes()


def header(rate: int, channels: int = 1, data_bytes: int = 0xFFFFFFFF, bits: int = 16, code: int = 1) -> bytes:
    extra = b"LIST\x05\0\0\0hello\0"  # of an odd size, with its padding
    layout = struct.pack("<4sIHHIIHH", b"fmt ", 16, code, channels, rate, rate * channels * 2, channels * 2, bits)
    return b"RIFF\xff\xff\xff\xffWAVE" + layout + extra + struct.pack("<4sI", b"data", data_bytes)


def read(*pieces: bytes, content_type: str = "", asked: str | None = "pcm", rate: int | None = None) -> ServerAnswer:
    reader = SpeechReader()
    reader.answer.content_type, reader.answer.asked_format, reader.answer.sample_rate = content_type, asked, rate
    for number, piece in enumerate(pieces):
        reader.feed(piece, float(number))
    reader.finish()
    assert reader.answer.sound is not None
    return reader.answer


@pytest.mark.parametrize(
    ("content_type", "rate", "channels"),
    [
        ("audio/pcm;rate=44100", 44_100, 1),
        ("audio/L16; rate=16000; channels=1", 16_000, 1),
        ('Audio/PCM; Rate="48000";channels=2', 48_000, 2),
        ("audio/pcm16; codecs=pcm_s16le; samplerate=16000", 16_000, 1),
        ("audio/x-pcm;sample_rate=16000", 16_000, 1),
        ("application/octet-stream", None, 1),
        ("audio/pcm; rate=fast", None, 1),
        ("", None, 1),
    ],
)
def test_the_rate_is_in_the_media_type(content_type: str, rate: int | None, channels: int) -> None:
    sound = read(PCM, content_type=content_type).sound
    assert sound.sample_rate == (rate or SAMPLE_RATE) and sound.is_rate_assumed == (rate is None)
    assert sound.samples.shape == ((9600,) if channels == 1 else (4800, 2))
    given = read(PCM, content_type=content_type, rate=8000).sound
    assert given.sample_rate == (rate or 8000) and not given.is_rate_assumed


@pytest.mark.parametrize("name", ["mp3", "aac"])
@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100])
def test_frames_are_known_without_a_tag(name: str, rate: int) -> None:
    sound = encode_audio(np.sin(np.arange(rate) / 9).astype(np.float32) / 2, rate, name)
    with pytest.raises(AnswerError, match="is not pcm, as asked for"):
        read(sound, content_type="audio/pcm")
    samples = sound[:2] + PCM  # which begin like one
    assert find_format(samples, "audio/pcm", "pcm") == "pcm" and find_format(sound, "audio/pcm", "pcm") == name


@pytest.mark.parametrize("data_bytes", [0, 0xFFFFFFFF, 0x7FFFFFFF, len(PCM)])
@pytest.mark.parametrize("size", [1, 7, 44, 61, 4096, 10**6])
def test_the_container_comes_before_the_media_type(size: int, data_bytes: int) -> None:
    """The header may come in any parts, and is no sound."""
    sent = header(44_100, 2, data_bytes) + PCM + b"LIST\0\0\0\0" * (data_bytes == len(PCM))
    answer = read(
        *(sent[at : at + size] for at in range(0, len(sent), size)), content_type="audio/pcm;rate=8000", rate=16_000
    )
    sound = answer.sound
    assert (sound.sample_rate, sound.samples.shape, sound.is_rate_assumed) == (44_100, (4800, 2), False)
    assert answer.audio_s == pytest.approx(4800 / 44_100) and answer.audio_at == 0.0
    assert answer.first_audio_s == (len(header(1)) + 3) // size
    assert sound.samples[:, 1] == pytest.approx(VOICE[1::2], abs=1e-4)
    assert sound.arrivals[-1][1] == 4800


def test_a_header_alone_is_not_sound() -> None:
    answer = read(header(24_000), PCM)
    assert answer.first_audio_s == 1.0 and answer.sound.arrivals == ((1.0, 9600),)


def test_wav_of_other_samples_is_decoded() -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 3, 22_050, 0, "NONE", ""))
        file.writeframes(b"".join(int(value * 2**23).to_bytes(3, "little", signed=True) for value in VOICE))
    answer = read(buffer.getvalue()[:44], buffer.getvalue()[44:], asked="wav", content_type="audio/wav")
    assert answer.sound.sample_rate == 22_050 and answer.sound.samples == pytest.approx(VOICE, abs=1e-6)
    assert answer.sound.arrivals == ((1.0, 9600),)


@pytest.mark.parametrize("name", ["mp3", "flac", "opus", "aac"])
def test_compressed_sound_is_decoded_if_it_was_asked_for(name: str) -> None:
    types = {"mp3": "audio/mpeg", "flac": "audio/flac", "opus": "audio/ogg", "aac": "audio/aac"}
    sent = encode_audio(VOICE, 24_000, name)
    answer = read(sent[:500], sent[500:], asked=name, content_type=types[name])
    assert answer.audio_s == pytest.approx(0.4, abs=0.1)
    assert answer.sound.arrivals[-1] == (1.0, len(answer.sound.samples))
    with pytest.raises(AnswerError, match="not pcm, as asked for") as caught:
        read(sent, content_type=types[name])
    assert caught.value.kind == f"{name} instead of pcm"


@pytest.mark.parametrize(
    ("sent", "content_type", "asked", "kind"),
    [
        (b'{"error": {"message": "busy"}}', "application/json", "pcm", "application/json instead of pcm"),
        (b'{"error":\n {"message": "busy"}}', "audio/pcm", "pcm", "text instead of pcm"),
        (b"<!doctype html>\n<p>busy", "text/html; charset=utf-8", "pcm", "text/html instead of pcm"),
        (b"data: {}\n\n", "text/event-stream", "pcm", "text/event-stream instead of pcm"),
        (PCM, "audio/x-secret", "pcm", "audio/x-secret instead of pcm"),
        (PCM, "audio/pcm", "mp3", "pcm instead of mp3"),
        (encode_wav(VOICE, 24_000), "audio/mpeg", "mp3", "pcm instead of mp3"),
    ],
)
def test_what_was_not_asked_for(sent: bytes, content_type: str, asked: str, kind: str) -> None:
    with pytest.raises(AnswerError) as caught:
        read(sent, content_type=content_type, asked=asked)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("sent", "content_type"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", ""),
        (header(24_000), ""),
        (header(0) + PCM, ""),
        (header(24_000, 0) + PCM, ""),
        (PCM, "audio/pcm;rate=999999999"),
        (PCM, "audio/pcm;bits=32;rate=24000"),
    ],
)
def test_sounds_that_cannot_be_read(sent: bytes, content_type: str) -> None:
    with pytest.raises(AnswerError, match="cannot be read"):
        read(sent, content_type=content_type)


def chat(*sounds: bytes) -> ServerAnswer:
    reader = ChatReader()
    reader.answer.content_type = "text/event-stream"
    for number, sound in enumerate(sounds):
        delta = {"audio": {"data": base64.b64encode(sound).decode()}}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        reader.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", float(number))
    reader.finish()
    return reader.answer


def test_a_chat_may_send_a_file_per_chunk() -> None:
    """Or one header with the first chunk, or none."""
    files = chat(*(header(16_000, data_bytes=4800) + part for part in (PCM[:4800], PCM[4800:9600]))).sound
    assert files.sample_rate == 16_000 and files.arrivals == ((0.0, 2400), (1.0, 4800))
    one = chat(header(16_000), PCM[:4800], PCM[4800:9600])
    assert one.sound.arrivals == ((1.0, 2400), (2.0, 4800)) and one.first_audio_s == 1.0
    raw = chat(PCM[:4801], PCM[4801:9600]).sound
    assert np.array_equal(raw.samples, files.samples) and np.array_equal(raw.samples, one.sound.samples)
    assert raw.is_rate_assumed and raw.arrivals == ((0.0, 2400), (1.0, 4800))
    with pytest.raises(AnswerError, match="change"):
        _ = chat(header(16_000) + PCM[:4800], header(24_000) + PCM[4800:]).sound
