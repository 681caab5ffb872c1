"""Transcriptions and translations with the official client, of Whisper with random weights."""

from __future__ import annotations

import functools
import io
import re
from typing import Any

import openai
import pytest
import soundfile
from support.omni_server import CHAT, OmniServer
from support.served_page import ServedPage
from support.transcriptions import voice
from transformers.models.whisper.tokenization_whisper import LANGUAGES

_CUE = re.compile(r"^(\d+\n)?[\d:.,]+ --> [\d:.,]+$", re.MULTILINE)


def wav(seed: int, seconds: float) -> tuple[str, bytes]:
    file = io.BytesIO()
    samples, rate = voice(seed, seconds)
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return "sound.wav", file.getvalue()


def transcribe(whisper_server: OmniServer, **fields: Any) -> Any:
    fields = {"file": wav(1, 9.0), "model": "whisper", "language": "en", **fields}
    return whisper_server.client().audio.transcriptions.create(**fields)


def test_formats_have_the_same_words_of_a_long_recording(whisper_server: OmniServer) -> None:
    ask, sound = functools.partial(transcribe, whisper_server, file=wav(3, 75.0)), {"response_format": "verbose_json"}
    whole = "".join(ask().text.split())
    assert len(whole) > 300
    verbose = ask(**sound, timestamp_granularities=["segment", "word"])
    subtitles = [ask(response_format=name) for name in ("srt", "vtt")]
    cues = ["".join(_CUE.sub("", text.removeprefix("WEBVTT"))) for text in subtitles]
    *deltas, done = ask(stream=True)
    found = {
        "text": ask(response_format="text"),
        "verbose_json": verbose.text,
        "segments": "".join(part.text for part in verbose.segments),
        "words": " ".join(word.word for word in verbose.words),
        "srt": cues[0],
        "vtt": cues[1],
        "deltas": "".join(event.delta for event in deltas),
        "stream": done.text,
    }
    assert {name: "".join(text.split()) for name, text in found.items()} == dict.fromkeys(found, whole)
    assert len(verbose.segments) > 9 and verbose.segments[-1].end > 70


def test_formats_have_the_same_text(whisper_server: OmniServer) -> None:
    plain = transcribe(whisper_server)
    assert plain.text and (plain.usage.type, plain.usage.seconds) == ("duration", 9)
    assert transcribe(whisper_server, response_format="text") == f"{plain.text}\n"
    verbose = transcribe(whisper_server, response_format="verbose_json", timestamp_granularities=["segment"])
    assert verbose.text == plain.text
    assert all(part.avg_logprob < 0 and part.compression_ratio > 0 for part in verbose.segments)
    assert all(0 < part.no_speech_prob < 1 for part in verbose.segments)
    assert (verbose.language, verbose.duration) == ("english", 9.0)
    assert verbose.segments and verbose.segments[0].tokens
    assert all(0 <= part.start <= part.end <= 9.0 and part.text for part in verbose.segments)
    cues = [part.text.strip() for part in verbose.segments]
    srt, vtt = (transcribe(whisper_server, response_format=name) for name in ("srt", "vtt"))
    assert srt.startswith("1\n00:00:0") and " --> 00:00:0" in srt and vtt.startswith("WEBVTT\n\n00:00:0")
    assert all(cue in srt and cue in vtt for cue in cues)
    assert f"\n{len(cues)}\n" in srt


def test_words_have_times(whisper_server: OmniServer) -> None:
    form = {"response_format": "verbose_json"}
    both = transcribe(whisper_server, timestamp_granularities=["segment", "word"], **form)
    assert both.words and all(0 <= word.start <= word.end <= 9.1 and word.word for word in both.words)
    only = transcribe(whisper_server, timestamp_granularities=["word"], **form)
    assert (only.words, only.segments) == (both.words, None)
    openai.types.audio.TranscriptionVerbose.model_validate(both.model_dump())


def test_a_large_upload_that_is_answered_is_no_hang_up(whisper_server: OmniServer) -> None:
    """Its file is on disk, and is closed after the answer."""
    name, sound = wav(0, 40.0)
    assert len(sound) > 2**20
    fields = {"path": "/v1/audio/transcriptions", "status": "200"}
    before, errors = whisper_server.metric("omni_requests_total", **fields), whisper_server.metric("omni_errors_total")
    for _ in range(3):
        whisper_server.client().audio.transcriptions.create(model="whisper", file=(name, sound), language="en")
    whisper_server.wait_until(lambda: whisper_server.metric("omni_requests_in_flight") == 0)
    assert whisper_server.metric("omni_requests_total", **fields) == before + 3
    assert whisper_server.metric("omni_errors_total") == errors


def test_a_stream_is_the_same_text_in_pieces(whisper_server: OmniServer) -> None:
    *deltas, done = transcribe(whisper_server, stream=True)
    assert {event.type for event in deltas} == {"transcript.text.delta"} and len(deltas) > 3
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text == transcribe(whisper_server).text
    assert done.usage.output_tokens > 3


def test_a_language_is_detected_a_prompt_and_a_translation_change_the_text(whisper_server: OmniServer) -> None:
    sound = wav(2, 2.0)
    detected = transcribe(whisper_server, file=sound, language=openai.omit, response_format="verbose_json")
    code = {name: code for code, name in LANGUAGES.items()}[detected.language]
    plain = transcribe(whisper_server, file=sound, language=openai.omit).text
    assert plain == transcribe(whisper_server, file=sound, language=code).text
    assert plain != transcribe(whisper_server, file=sound, prompt="rain on a tin roof").text
    translated = whisper_server.client().audio.translations.create(file=sound, model="whisper")
    assert translated.text and translated.text != plain


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"file": ("a.wav", b"not a sound")}, 400, "audio in `file`: it is damaged, or its format is not among those"),
        ({"file": ("a.mp3", b"not a sound")}, 400, "that can be read (WAV, FLAC, MP3, Ogg, M4A"),
        ({"file": ("a.wav", b"")}, 400, "the audio in `file` is empty (0 bytes)"),
        ({"file": wav(0, 0.0)}, 400, "`file`"),
        ({"file": wav(0, 0.02)}, 400, "audio in `file` is too short to be speech: 20 ms"),
        ({"language": "klingon"}, 400, "`language`"),
        (
            {"timestamp_granularities": ["letter"], "response_format": "verbose_json"},
            400,
            "`timestamp_granularities[][0]` must be",
        ),
        ({"timestamp_granularities": ["segment"]}, 400, "`timestamp_granularities`"),
        ({"response_format": "srt", "stream": True}, 400, "`stream`"),
        ({"response_format": "diarized_json"}, 400, "does not tell speakers apart"),
        ({"response_format": "diarized_json", "stream": True}, 400, "`stream`"),
        ({"temperature": -1.0}, 400, "temperature"),
        ({"extra_body": {"prompt_condition_type": "some"}}, 400, "prompt_condition_type"),
        ({"include": ["logprobs"]}, 400, "include"),
        ({"extra_body": {"timestamp_granularities": "word"}}, 400, "did you mean `timestamp_granularities[]`?"),
        ({"model": "another"}, 404, "`another`"),
    ],
)
def test_a_wrong_field_is_named(whisper_server: OmniServer, fields: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        transcribe(whisper_server, **fields)
    assert raised.value.status_code == status and message in raised.value.message


def test_a_model_does_one_of_both(whisper_server: OmniServer, omni: OmniServer) -> None:
    answer = whisper_server.request("POST", CHAT, {"messages": [{"role": "user", "content": "hello"}]})
    assert answer.status == 404 and "use /v1/audio/transcriptions" in answer.error["message"]
    with pytest.raises(openai.NotFoundError, match="does not transcribe speech"):
        transcribe(omni, model="tiny-omni")


@pytest.mark.slow
def test_the_page_transcribes_what_is_attached(page: ServedPage, whisper_server: OmniServer) -> None:
    page.open(whisper_server)
    page.until("!document.getElementById('attach').hidden")
    page.browser.evaluate(
        f"attach([new File([Uint8Array.from({list(wav(1, 2.0)[1])})], 'a.wav', {{type: 'audio/wav'}})])"
    )
    page.until("document.querySelector('#files li')")
    page.browser.evaluate("document.getElementById('send').click()")
    page.until_idle()
    assert page.text(".answer") and "first token" in page.text(".facts"), page.text("#log")
    assert page.browser.problems == []
