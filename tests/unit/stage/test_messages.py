"""Messages between processes: values of any type arrive as they were sent, and invalid bytes are errors."""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_cli.core.errors import CheckpointError, StageError
from omni_cli.requests.contents import CallFile, Media, StageIO, ToolCallDelta, Video
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, Message, Part, PromptTokens, VideoOutput, VideoSound
from omni_cli.stage.messages import (
    AddRequest,
    DecodeError,
    Failure,
    Report,
    RequestDone,
    decode_command,
    decode_commands,
    decode_reports,
    encode,
    join,
)

SAMPLES = np.linspace(-1, 1, 7, dtype=np.float32)
PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


def arrived(request: GenerateRequest, hops: int = 1) -> GenerateRequest:
    for _ in range(hops):
        command = decode_command(encode(AddRequest(request)))
        assert isinstance(command, AddRequest)
        request = command.request
    return request


def decode_report(raw: bytes) -> Report:
    (report,) = decode_reports(raw)
    return report


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("hops", [1, 2])  # the ranks of a parallel stage get what rank 0 got
def test_a_request_arrives_as_it_was_sent(hops: int) -> None:
    clip = CallFile("video", PIXELS[None], 24.0, CallFile("audio", SAMPLES, 16_000.0))
    sent = GenerateRequest(
        "a",
        "hello",
        messages=(Message("user", (Part("text", "x"), Part("image"))),),
        media=Media(
            audio=((SAMPLES, 16_000),),
            images=(PIXELS, PIXELS[:, ::2]),
            mask=PIXELS[:1],
            videos=(Video(PIXELS[None], 24.0, 1, (0,)),),
            call_files={"references": [clip, None, {"x": CallFile("tensor", np.array(3.0))}], "image": clip},
        ),
        seed=2**64 - 1,
        modalities=frozenset({"audio"}),
        sampling={"temperature": 0.5},
        diffusion={"sigmas": [1, 0.5], "by_number": {1: "a"}},
        stage=StageIO(input=b"abc", more_follows=True),
        notes=("the image was turned",),
    )
    assert same(arrived(sent, hops), sent)


def test_arrays_are_views_of_the_message_and_always_aligned() -> None:
    for length in range(8):
        raw = encode(AddRequest(GenerateRequest("a" * length, media=Media(audio=((SAMPLES, 1),), images=(PIXELS,)))))
        command = decode_command(raw)
        assert isinstance(command, AddRequest)
        (image,), ((samples, _),) = command.request.media.images, command.request.media.audio
        assert np.shares_memory(image, np.frombuffer(raw, np.uint8))
        assert samples.flags.aligned and same(samples, SAMPLES)


def test_messages_that_are_joined_stay_in_order_and_a_large_one_keeps_no_other_alive() -> None:
    sizes = [1, 2, 2 << 20, 3, 600_000, 600_000, 4]
    single = [encode(AudioChunk("a", np.zeros(size // 4 + 1, np.float32), 1)) for size in sizes]
    joined = list(join(single))
    counts = [len(decode_reports(message)) for message in joined]
    assert counts == [2, 1, 2, 2] and joined[1] is single[2]
    assert [encode(report) for message in joined for report in decode_reports(message)] == single


def test_a_message_of_nothing_is_not_one() -> None:
    for decode in (decode_commands, decode_reports):
        with pytest.raises(DecodeError):
            decode(b"\x90")


def test_an_error_arrives_with_the_traceback_of_its_process() -> None:
    for error in (CheckpointError("no", hint="yes"), StageError("no", stage="talker")):
        arrived_error = Failure.of(error, details="Traceback of the stage").error("talker")
        assert type(arrived_error) is type(error) and arrived_error.details == "Traceback of the stage"


def test_outputs_arrive_as_they_were_made() -> None:
    video = VideoOutput(b"mp4", b"webp", 3, 2, 1, Fraction(24000, 1001), VideoSound(48_000, 7), PIXELS[None])
    sent = RequestDone("a", {}, audio=AudioOutput(SAMPLES, 24_000), videos=(video,), tensors={"x": np.zeros((0, 3))})
    assert same(decode_report(encode(sent)), sent)


def test_more_text_arrives_as_it_was_made() -> None:
    fields = ("r", "text", 1, 2, (((3, -0.5, None),),), "thought", (ToolCallDelta(0, "id", "f", "{"),))
    delta = TextDelta(*fields, PromptTokens("p", (1,)))
    assert decode_report(encode(delta)) == delta


def test_any_mapping_is_sent() -> None:
    assert arrived(GenerateRequest("a", diffusion=MappingProxyType({"height": 64}))).diffusion == {"height": 64}


@pytest.mark.parametrize("value", [object(), np.float32(1), np.zeros(2, np.float16), np.array([None])])
def test_other_types_are_not_sent(value: object) -> None:
    with pytest.raises(TypeError, match="are not sent"):
        encode(AddRequest(GenerateRequest("a", diffusion={"x": value})))


def array(**fields: object) -> msgspec.msgpack.Ext:
    parts = {"data": bytes(12), "shape": (3,), "dtype": "float32", **fields}
    return msgspec.msgpack.Ext(0, msgspec.msgpack.encode(parts))


def report(image: object) -> Report:
    content = {"type": "RequestDone", "request_id": "a", "trace": {}, "images": [image]}
    return decode_report(msgspec.msgpack.encode(content))


def test_arrays_whose_parts_fit_are_read() -> None:
    assert same(report(array()), RequestDone("a", {}, images=(np.zeros(3, np.float32),)))


@pytest.mark.parametrize(
    "image",
    [
        array(shape=(4,)),
        array(shape=(-1,)),
        array(shape=(-1, -3)),
        array(shape=(1,) * 100 + (3,)),
        array(data=b"", shape=(0, 2**62, 2**62)),
        array(data=bytes(11)),
        array(dtype="object"),
        array(dtype="float16"),
        array(dtype="complex64"),
        {"data": bytes(12), "shape": (3,), "dtype": "float32"},
        msgspec.msgpack.Ext(0, b"x"),
        msgspec.msgpack.Ext(1, b"x"),
        msgspec.msgpack.Ext(2, msgspec.msgpack.encode((1, 2))),
        msgspec.msgpack.Ext(2, msgspec.msgpack.encode((1, 0))),
        msgspec.msgpack.Ext(9, b""),
        1,
    ],
)
def test_other_arrays_are_errors(image: object) -> None:
    with pytest.raises(DecodeError):
        report(image)
