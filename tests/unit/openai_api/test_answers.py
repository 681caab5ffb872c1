"""Parsing answers, and rejecting invalid ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from omni_cli.core.errors import AnswerError
from omni_cli.openai_api.reading import ChatReader, ImagesReader, SpeechReader, TranscriptReader


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
    assert answer.choices[0].at == [2.0, 2.0, 3.0] and "".join(answer.text) == "hello!"
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


def call(function: dict[str, Any] | None, **fields: Any) -> bytes:
    return piece({"tool_calls": [{"function": function, **fields}]})


def test_all_parts_of_all_choices_are_kept_by_index() -> None:
    reader = ChatReader()
    two = [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"reasoning": "hm", "content": None}}]
    reader.feed(event({"choices": two}) + event({"choices": None}) + event({"choices": [{"delta": None}]}), 1.0)
    reader.feed(call({"name": "pay", "arguments": ""}, index=0, id="x") + call({"arguments": '{"eur":'}, index=0), 2.0)
    reader.feed(call({"arguments": " 1}"}, index=0) + piece({"refusal": "I can"}) + piece({"refusal": "not"}), 3.0)
    reader.feed(call({"name": "stop", "arguments": {"now": True}}, index=1) + piece({}, "tool_calls"), 4.0)
    with pytest.raises(AnswerError, match="without a finish_reason"):
        reader.finish()
    reader.feed(event({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}), 5.0)
    reader.finish()
    first, second = reader.answer.choices[0], reader.answer.choices[1]
    assert (first.text, first.finish_reason, second.text, second.finish_reason) == ("hm", "tool_calls", "b", "length")
    calls = [(item.name, item.arguments) for item in first.tool_calls.values()]
    assert calls == [("pay", '{"eur": 1}'), ("stop", '{"now": true}')] and first.refusal == ["I can", "not"]


def test_a_call_by_its_earlier_name_is_one() -> None:
    reader = ChatReader()
    reader.feed(piece({"content": None, "function_call": {"name": "pay", "arguments": ""}}), 1.0)
    reader.feed(piece({"function_call": {"arguments": '{"eur": 1}'}}) + piece({}, "function_call"), 2.0)
    reader.finish()
    (made,) = reader.answer.choices[0].tool_calls.values()
    assert (made.name, made.arguments) == ("pay", '{"eur": 1}')
    assert (reader.answer.first_at, reader.answer.last_at, reader.answer.num_chunks) == (1.0, 2.0, 2)


@pytest.mark.parametrize(("counts", "first"), [((2, 3, 4), 2), ((0, 0, 4), None), ((4, 4, 4), None)])
def test_a_count_that_does_not_grow_is_not_that_of_the_first_chunk(counts: tuple[int, ...], first: int | None) -> None:
    reader = ChatReader()
    for number, count in enumerate(counts):
        document = {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": count}}
        reader.feed(event(document), float(number))
    assert reader.answer.first_tokens == first


@pytest.mark.parametrize(("deltas", "later"), [([{"content": "a"}] * 5, 4), ([{"reasoning": "a"}] * 5, 40)])
def test_reasoning_that_is_not_sent_has_no_time(deltas: list[dict[str, Any]], later: float) -> None:
    reader = ChatReader()
    for number, delta in enumerate(deltas):
        reader.feed(piece(delta), float(number))
    usage = {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 45}}
    reader.feed(event({"choices": [], "usage": usage}), 9.0)
    assert reader.answer.later_tokens == later


def test_an_id_begins_a_call_where_there_is_no_index() -> None:
    reader = ChatReader()
    for number, name in enumerate(("pay", "refund")):
        reader.feed(call({"name": name}, id=f"call_{number}") + call({"arguments": "{}"}), 1.0)
    assert [(item.name, item.arguments) for item in reader.answer.choices[0].tool_calls.values()] == [
        ("pay", "{}"), ("refund", "{}"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"content": "a"}], [{"content": "b"}]),
        ([{"content": "hm"}], [{"reasoning": "hm"}]),
        ([{"refusal": "no"}], [{"content": "no"}]),
        ([{"reasoning": "a"}, {"content": "bc"}], [{"reasoning": "ab"}, {"content": "c"}]),
        ([{"tool_calls": [{"function": {"name": "a"}}]}], [{"tool_calls": [{"function": {"name": "b"}}]}]),
    ],
)
def test_answers_are_equal_only_if_all_parts_are(one: list[Any], other: list[Any]) -> None:
    compared = []
    for deltas in (one, one[::-1] if len(one) > 1 else one, other):
        reader = ChatReader()
        for delta in deltas:
            reader.feed(piece(delta), 1.0)
        compared.append(reader.answer.choices[0].comparison_text)
    assert compared[0] == compared[1] != compared[2], "the order of parts of other kinds is not compared"


@pytest.mark.parametrize(
    ("sent", "kind", "message"),
    [
        (
            event({"choices": [{"index": 1, "delta": {"audio": {"data": "AAAA"}}}]}),
            "invalid answer",
            "several choices have sound",
        ),
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


@pytest.mark.parametrize("rest", [b'"duration": 30, "segments": []}', b'"duration": "30"}', b'"usage": null}'])
def test_transcripts(rest: bytes) -> None:
    """The length is not the server's, which may be that of a padded window."""
    reader = TranscriptReader()
    reader.feed(b'{"text": "Hello.", ', 1.0)
    reader.feed(rest, 2.0)
    reader.finish()
    assert (reader.answer.content, reader.answer.audio_s) == (["Hello."], None)


@pytest.mark.parametrize("body", [b'{"duration": 2.5}', b'{"text": null}', b"Hello.", b""])
def test_invalid_transcripts(body: bytes) -> None:
    reader = TranscriptReader()
    reader.feed(body, 1.0)
    with pytest.raises(AnswerError):
        reader.finish()


def test_nulls_lists_of_parts_and_counts_with_a_fraction_are_read() -> None:
    reader = ChatReader()
    reader.feed(event({"choices": [None]}), 1.0)
    reader.feed(piece({"tool_calls": [None], "content": []}), 1.5)
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    reader.feed(piece({"content": [thought]}), 2.0)
    reader.feed(piece({"content": [{"type": "text", "text": "he"}, {"text": "llo"}]}) + piece({}, "stop"), 3.0)
    usage = {"prompt_tokens": 7.0, "completion_tokens": 9.0, "completion_tokens_details": {"reasoning_tokens": 6.0}}
    reader.feed(event({"choices": None, "usage": usage}), 4.0)
    reader.finish()
    answer = reader.answer
    assert (answer.first_at, answer.last_at, answer.text) == (2.0, 3.0, ["hm", "hello"])
    assert (answer.choices[0].reasoning, answer.content) == (["hm"], ["hello"])
    assert (answer.input_tokens, answer.output_tokens, answer.hidden_tokens) == (7, 9, 0), "its reasoning was sent"


@pytest.mark.parametrize(("chunks", "hidden"), [(3, 6), (9, 0)])
def test_reasoning_without_chunks_is_hidden(chunks: int, hidden: int) -> None:
    """Where there are more chunks than other tokens, the reasoning is in them."""
    reader = ChatReader()
    for number in range(chunks):
        reader.feed(piece({"content": "a "}), float(number))
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 6}}
    reader.feed(piece({}, "stop") + event({"choices": [], "usage": usage}), 9.0)
    assert reader.answer.hidden_tokens == hidden


def test_a_transcript_may_be_plain_text() -> None:
    reader = TranscriptReader()
    reader.answer.content_type = "text/plain; charset=utf-8"
    reader.feed('na"ïve'.encode(), 1.0)
    reader.finish()
    assert reader.answer.content == ['na"ïve']
    reader.answer.content_type = "text/html"
    with pytest.raises(AnswerError, match="not a valid response"):
        reader.finish()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b'{"error": {"message": "busy"}}', "without a finish_reason: {.error.: {.message.: .busy.}}"),
        (b'event: error\ndata: {"message": "busy", "code": 500}\n\n', "^busy$"),
        (b'data: {"object": "error", "message": "busy"}\n\n', "^busy$"),
        (b'data: {"error": {"message": "busy"}, "choices": null}\n\n', "^busy$"),
        (b": busy\n\n", "without a finish_reason$"),
    ],
)
def test_an_error_in_place_of_an_answer_is_said(sent: bytes, message: str) -> None:
    def read() -> None:
        reader = ChatReader()
        reader.feed(sent, 1.0)
        reader.finish()

    with pytest.raises(AnswerError, match=message):
        read()


@pytest.mark.parametrize(("tokens", "details", "later"), [(60, {}, None), (60, {"audio_tokens": 58}, 1), (2, {}, 1)])
def test_tokens_that_may_be_those_of_sound_are_not_counted_as_text(
    tokens: int, details: dict[str, int], later: int | None
) -> None:
    reader = ChatReader()
    reader.feed(piece({"content": "h"}) + piece({"content": "i"}), 1.0)
    reader.feed(piece({"audio": {"data": base64.b64encode(b"\1\0" * 99).decode()}}), 2.0)
    usage = {"completion_tokens": tokens, "completion_tokens_details": details}
    reader.feed(piece({}, "stop") + event({"choices": [], "usage": usage}), 3.0)
    assert reader.answer.later_tokens == later
