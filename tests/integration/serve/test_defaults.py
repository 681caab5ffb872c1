"""Defaults: what clients send works, and what they leave out is what people expect."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import av
import pytest
from PIL import Image
from support.omni_server import CHAT, IMAGES, SPEECH, OmniServer

HELLO = [{"role": "user", "content": "hello"}]
SHORT = {"messages": HELLO, "max_tokens": 4}
SPOKEN = {"messages": HELLO, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}


def chat(server: OmniServer, **fields: Any) -> dict[str, Any]:
    answer = server.request("POST", CHAT, {**SHORT, **fields})
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "x"},
        {"messages": [{"role": "user", "content": "hi", "name": "anna"}]},
        {"messages": [*HELLO, {"role": "assistant", "content": None, "refusal": None}, *HELLO]},
        {"tool_choice": "auto", "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"parallel_tool_calls": True, "moderation": "low", "safety_identifier": "s"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"logit_bias": {"5": 1.0}, "logprobs": False},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_harmless_fields_are_accepted(omni: OmniServer, fields: dict[str, Any]) -> None:
    fields.pop("name", None)
    assert chat(omni, **fields)["choices"][0]["finish_reason"] in ("stop", "length")


def test_without_a_seed_answers_differ_and_name_their_seed(omni: OmniServer) -> None:
    answers = [chat(omni, temperature=1.5, max_tokens=12) for _ in range(4)]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) > 1
    assert len({answer["seed"] for answer in answers}) == 4
    again = chat(omni, temperature=1.5, max_tokens=12, seed=answers[0]["seed"])
    assert again["choices"][0]["message"] == answers[0]["choices"][0]["message"]


def test_images_without_a_seed_differ_and_name_it(image_server: OmniServer) -> None:
    answers = [image_server.request("POST", IMAGES, {"prompt": "a cube"}) for _ in range(2)]
    first, second = (json.loads(answer.body) for answer in answers)
    assert first["data"] != second["data"]
    assert answers[0].headers["x-seed"] == str(first["seed"]) != str(second["seed"])
    again = image_server.request("POST", IMAGES, {"prompt": "a cube", "seed": first["seed"]})
    assert json.loads(again.body)["data"] == first["data"]


@pytest.mark.parametrize("image_format", ["png", "jpeg", "webp"])
def test_formats_of_images(image_server: OmniServer, image_format: str) -> None:
    fields = {"output_format": image_format, "response_format": "url", "quality": "high", "moderation": "low"}
    answer = image_server.request("POST", IMAGES, {"prompt": "a cube", "seed": 1, **fields})
    document = json.loads(answer.body)
    head, _, data = document["data"][0]["url"].partition(",")
    assert head == f"data:image/{image_format};base64" and document["output_format"] == image_format
    assert Image.open(io.BytesIO(base64.b64decode(data))).format == image_format.upper()


def test_speech_that_is_cut_is_called_so(omni: OmniServer) -> None:
    answer = chat(omni, **{**SPOKEN, "max_audio_tokens": 10, "max_tokens": None})
    assert answer["choices"][0]["finish_reason"] == "length"
    details = answer["usage"]["completion_tokens_details"]
    assert details["audio_tokens"] == 10
    assert details["text_tokens"] + 10 == answer["usage"]["completion_tokens"]
    spoken = omni.request("POST", SPEECH, {"input": "a long road home", "max_audio_tokens": 10})
    assert spoken.status == 200 and spoken.headers["x-finish-reason"] == "length"


@pytest.mark.parametrize(("audio_format", "codec"), [("mp3", "mp3float"), ("opus", "opus"), ("aac", "aac")])
@pytest.mark.parametrize("streamed", [False, True])
def test_formats_of_speech(omni: OmniServer, audio_format: str, codec: str, streamed: bool) -> None:
    stream = {"stream_format": "audio"} if streamed else {}
    body = {"input": "hello", "seed": 3, "voice": "alloy", "max_audio_tokens": 30, **stream}
    named = {} if audio_format == "mp3" else {"response_format": audio_format}
    answer = omni.request("POST", SPEECH, {**body, **named})
    assert answer.status == 200, answer.body
    with av.open(io.BytesIO(answer.body)) as container:
        (stream_,) = container.streams.audio
        lengths: list[int] = [frame.samples for frame in container.decode(audio=0)]
        seconds = sum(lengths) / stream_.rate
        assert stream_.codec.name in (codec, f"lib{codec}")
    whole = omni.request("POST", SPEECH, {**body, "response_format": "pcm", "stream_format": "audio"})
    assert seconds == pytest.approx(len(whole.body) / 2 / 24_000, abs=0.1)


def test_instructions_change_how_a_text_is_spoken(omni: OmniServer) -> None:
    body = {"input": "hello", "seed": 3, "max_audio_tokens": 30, "response_format": "pcm", "speed": 1}
    plain, slow, again, fast = (
        omni.request("POST", SPEECH, {**body, **fields}).body
        for fields in ({}, *({"instructions": f"Speak {how}."} for how in ("slowly", "slowly", "fast")))
    )
    assert slow == again and len({plain, slow, fast}) == 3


def test_earlier_speech_is_known_by_its_id(omni: OmniServer) -> None:
    answer = chat(omni, **{**SPOKEN, "max_audio_tokens": 10})
    message = answer["choices"][0]["message"]
    named, given = (
        chat(omni, messages=[*HELLO, {"role": "assistant", "audio": audio}, *HELLO], return_token_ids=True)
        for audio in ({"id": message["audio"]["id"]}, {"transcript": message["audio"]["transcript"]})
    )
    assert named["usage"]["prompt_tokens"] == given["usage"]["prompt_tokens"]
    assert named["choices"][0]["token_ids"] == given["choices"][0]["token_ids"]


def test_log_probabilities_whole_and_streamed(omni: OmniServer) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "temperature": 0, "max_tokens": 6}
    (choice,) = chat(omni, **fields, return_token_ids=True)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == len(choice["token_ids"])
    assert all(len(item["top_logprobs"]) == 3 for item in content)
    assert all(item["logprob"] == item["top_logprobs"][0]["logprob"] for item in content)
    streamed = omni.client().chat.completions.create(
        model="tiny-omni", messages=HELLO, logprobs=True, top_logprobs=3, temperature=0, max_tokens=6, stream=True
    )
    pieces = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices]
    joined = [item.model_dump() for piece in pieces if piece is not None for item in piece.content]
    assert joined == content


def test_usage_in_every_chunk(omni: OmniServer) -> None:
    """guidellm and others ask for vLLM's `continuous_usage_stats`."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        omni.client().chat.completions.create(
            model="tiny-omni", messages=HELLO, max_tokens=6, stream=True, stream_options=options
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) > 2 and counts == sorted(counts) and counts[-1] <= 6
    assert len({chunk.usage.prompt_tokens for chunk in chunks if chunk.usage is not None}) == 1


def test_the_log_of_a_refusal_names_the_field(omni: OmniServer) -> None:
    answer = omni.request("POST", CHAT, {"messages": HELLO, "temperature": "hot"}, x_request_id="refused-field")
    assert answer.status == 400
    # A request is logged once its last byte is sent.
    (line,) = omni.wait_until(lambda: [line for line in omni.log("request") if line["request_id"] == "refused-field"])
    assert "`temperature`" in line["message"]


def test_any_model_name(start_server: Any) -> None:
    names = ("--served-model-name", "tts-1", "--served-model-name", "*")
    server = start_server("--profile", "tiny-image", *names)
    assert server.request("POST", IMAGES, {"model": "gpt-image-1", "prompt": "x"}).status == 200
    assert [model.id for model in server.client().models.list()] == ["tiny-image", "tts-1"]
