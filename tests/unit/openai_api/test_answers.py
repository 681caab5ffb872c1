"""Parsing answers, and rejecting invalid ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from omni_cli.openai_api.reading import AnswerError, ChatReader, ImagesReader, SpeechReader, TranscriptReader


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def piece(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def test_a_chat_with_text_sound_and_usage() -> None:
    reader = ChatReader()
    sound = base64.b64encode(b"\x01\x00" * 2400).decode()
    reader.feed(piece({"role": "assistant", "content": ""}), 1.0)
    reader.feed(piece({"content": "he"}) + piece({"content": "llo"}), 2.0)
    reader.feed(piece({"content": "!"}), 3.0)
    reader.feed(piece({"audio": {"id": "a", "data": sound}}), 4.0)
    reader.feed(piece({"audio": {"data": sound}}) + piece({}, "stop"), 5.0)
    usage = {"prompt_tokens": 7, "completion_tokens": 13, "completion_tokens_details": {"audio_tokens": 10}}
    reader.feed(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n", 6.0)
    reader.finish()
    answer = reader.answer
    # The piece that only says who speaks is no token; two that come together come at the same time.
    assert answer.chunks[0].at == [2.0, 2.0, 3.0] and "".join(answer.text) == "hello!"
    assert answer.audio_at == 4.0 and answer.audio_s == pytest.approx(0.2)
    assert (answer.input_tokens, answer.output_tokens, answer.audio_tokens) == (7, 13, 10)


@pytest.mark.parametrize(("fields", "reason"), [({"finish_reason": "length"}, "length"), ({}, "stop")])
def test_events_of_speech(fields: dict[str, Any], reason: str) -> None:
    """OpenAI's last event has no reason."""
    reader = ChatReader()
    sound = base64.b64encode(b"\x01\x00" * 2400).decode()
    reader.feed(event({"type": "speech.audio.delta", "audio": sound}), 1.0)
    with pytest.raises(AnswerError, match="ended without"):
        reader.finish()
    usage = {"input_tokens": 7, "output_tokens": 13, "total_tokens": 20}
    reader.feed(event({"type": "speech.audio.delta", "audio": sound}), 2.0)
    reader.feed(event({"type": "speech.audio.done", "usage": usage, **fields}), 3.0)
    reader.finish()
    assert reader.answer.audio_at == 1.0 and reader.answer.audio_s == pytest.approx(0.2)
    assert reader.answer.finish_reason == reason and reader.answer.output_tokens is None


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"audio": {"transcript": "hm"}}])
def test_thoughts_and_transcripts_are_text(delta: dict[str, Any]) -> None:
    reader = ChatReader()
    reader.feed(piece(delta) + piece({}, "stop"), 1.0)
    reader.finish()
    assert reader.answer.text == ["hm"]
    assert reader.answer.output_tokens is None


def test_words_that_are_also_the_transcript_count_once() -> None:
    reader = ChatReader()
    reader.feed(piece({"content": "hm", "audio": {"transcript": "hm"}}), 1.0)
    assert reader.answer.text == ["hm"]


@pytest.mark.parametrize(
    ("sent", "kind", "message"),
    [
        (b"", "incomplete answer", "without a finish_reason"),
        (piece({"content": "x"}) + b"data: [DONE]\n\n", "incomplete answer", "without a finish_reason"),
        (event({"error": {"message": "stage `talker` has stopped"}}), "error in the stream", "stage `talker`"),
        (event({"error": "out of memory"}), "error in the stream", "out of memory"),
        (b"data: {\n\n", "invalid answer", "not a valid response of this endpoint"),
        (event({"choices": "x"}), "invalid answer", "not a valid response of this endpoint"),
        (piece({"audio": {"data": "?"}}), "invalid answer", "not base64"),
    ],
)
def test_chats_that_are_none(sent: bytes, kind: str, message: str) -> None:
    reader = ChatReader()
    with pytest.raises(AnswerError, match=message) as caught:
        reader.feed(sent, 1.0)
        reader.finish()
    assert caught.value.kind == kind


def test_speech() -> None:
    reader = SpeechReader()
    reader.feed(b"\x00" * 12_000, 1.0)
    reader.feed(b"\x00" * 36_000, 2.0)
    reader.finish()
    assert reader.answer.audio_at == 1.0 and reader.answer.audio_s == 1.0
    with pytest.raises(AnswerError, match="contains no audio"):
        SpeechReader().finish()


def test_images() -> None:
    reader = ImagesReader()
    body = json.dumps({"created": 1, "data": [{"b64_json": base64.b64encode(b"png").decode()}]}).encode()
    reader.feed(body[:9], 1.0)
    reader.feed(body[9:], 2.0)
    reader.finish()
    assert reader.answer.images == [b"png"]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"data": []}', b'{"data": [{"url": "http://x"}]}', b'{"data": [{"b64_json": "?"}]}']
)
def test_invalid_images(body: bytes) -> None:
    reader = ImagesReader()
    reader.feed(body, 1.0)
    with pytest.raises(AnswerError):
        reader.finish()


@pytest.mark.parametrize("duration", ["2.5", '"2.5"'])
def test_transcripts(duration: str) -> None:
    reader = TranscriptReader()
    reader.feed(b'{"text": "Hello.", "dura', 1.0)
    reader.feed(f'tion": {duration}, "segments": []}}'.encode(), 2.0)
    reader.finish()
    assert (reader.answer.content, reader.answer.audio_s) == (["Hello."], 2.5)


@pytest.mark.parametrize("body", [b'{"text": "Hello."}', b'{"text": "a", "duration": "long"}', b"Hello.", b""])
def test_invalid_transcripts(body: bytes) -> None:
    reader = TranscriptReader()
    reader.feed(body, 1.0)
    with pytest.raises(AnswerError):
        reader.finish()
