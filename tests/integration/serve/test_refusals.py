"""Refusals of the server: OpenAI's error shape, the right status, the field's name."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import openai
import pytest
from support.media_samples import bomb_png
from support.omni_server import CHAT, IMAGES, SPEECH, OmniServer

from omni_cli.requests.encoding import encode_wav

HELLO = [{"role": "user", "content": "hello"}]


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video_part(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def audio_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


CHAT_MISTAKES: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "`messages` is missing", "messages"),
    ({"messages": []}, "at least 1 item", "messages"),
    ({"messages": "hello"}, "valid list", "messages"),
    ({"messages": HELLO, "max_token": 5}, "did you mean `max_tokens`?", "max_token"),
    ({"messages": HELLO, "temperature": "hot"}, "valid number", "temperature"),
    ({"messages": HELLO, "temperature": -1}, "greater than or equal to 0", "temperature"),
    ({"messages": HELLO, "top_k": 10**30}, "less than or equal to", "top_k"),
    ({"messages": HELLO, "x" * 100_000: 1}, "unknown field `xxx", None),
    ({"messages": HELLO, "reasoning_effort": "high"}, "takes no `reasoning_effort`", None),
    ({"messages": HELLO, "n": 0}, "greater than or equal to 1", "n"),
    ({"messages": HELLO, "n": 1000}, "the maximum is", "n"),
    ({"messages": HELLO, "n": 2, "modalities": ["text", "audio"]}, "`n` needs", "n"),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "`tools[0].function` is missing", "tools[0].function"),
    ({"messages": HELLO, "max_tokens": 2, "max_completion_tokens": 3}, "differ: send one", "max_tokens"),
    ({"messages": HELLO, "top_logprobs": 2}, "needs `logprobs: true`", "top_logprobs"),
    ({"messages": HELLO, "top_logprobs": 21}, "less than or equal to 20", "top_logprobs"),
    ({"messages": HELLO, "logit_bias": {"word": 1}}, "pattern", "logit_bias"),
    ({"messages": HELLO, "max_tokens": 8_000_000}, "`max_tokens` is 8000000, and the context", None),
    ({"messages": HELLO, "max_completion_tokens": 8_000_000}, "`max_completion_tokens` is 8000000", None),
    (
        {"messages": HELLO, "response_format": {"type": "xml"}},
        "'json_object'",
        "response_format",
    ),
    (
        {"messages": [*HELLO, {"role": "assistant", "audio": {"id": "audio_unknown"}}, *HELLO]},
        "is not known here",
        "messages[1].audio.id",
    ),
    ({"messages": HELLO, "structured_outputs": {"json": "{"}}, "EOF", "structured_outputs.json"),
    ({"messages": HELLO, "structured_outputs": {"json": "[]"}}, "valid dictionary", "structured_outputs.json"),
    ({"messages": HELLO, "modalities": ["video"]}, "'text' or 'audio'", "modalities[0]"),
    ({"messages": HELLO, "audio": {"voice": "Chelsie", "format": "wav"}}, "needs `modalities", "audio"),
    (
        {"messages": HELLO, "modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "ogg"}},
        "'wav', 'mp3', 'flac', 'opus', 'aac' or 'pcm16'",
        "audio.format",
    ),
    (
        {"messages": HELLO, "modalities": ["text", "audio"], "audio": {"format": "wav"}, "stream": True},
        "streamed speech is `pcm16`",
        "audio.format",
    ),
    ({"messages": HELLO, "stream_options": {"include_usage": True}}, "needs `stream: true`", "stream_options"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "is missing", "messages[0].tool_call_id"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "'user'", "messages[0]"),
    (content({"type": "file_url", "file_url": {"url": "x"}}), "'image_url'", "messages[0].content[0]"),
    (
        content(video_part("https://example.com/cat.mp4")),
        "allow it by `--allow-media-url`",
        "messages[0].content[0].video_url.url",
    ),
    (content(video_part("data:video/mp4;base64,aGVsbG8=")), "cannot read the video", None),
    (content(image_part("https://example.com/cat.png")), "send a data URL", "messages[0].content[0].image_url.url"),
    (content(image_part("file:///etc/passwd")), "send a data URL", "messages[0].content[0].image_url.url"),
    (content(image_part("data:image/png;base64,@@@")), "not valid base64", "messages[0].content[0].image_url.url"),
    (content(image_part("data:image/png;base64,aGVsbG8=")), "format is not recognised", None),
    (content(audio_part(b"no audio at all")), "cannot read the audio", None),
]


@pytest.mark.parametrize(("body", "message", "param"), CHAT_MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_in_a_chat(omni: OmniServer, body: dict[str, Any], message: str, param: str | None) -> None:
    answer = omni.request("POST", CHAT, {"model": "tiny-omni", **body})
    assert answer.status == 400, answer.body
    assert message in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"
    if param is not None:
        assert answer.error["param"].startswith(param)


PICTURE_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "`prompt` is missing"),
    ({"prompt": "x", "n": 0}, "greater than or equal to 1"),
    ({"prompt": "x", "n": 11}, "`n` may be at most 10"),
    ({"prompt": "x", "size": "big"}, "WIDTHxHEIGHT"),
    ({"prompt": "x", "num_inference_steps": 1}, "needs more than one step"),
    ({"prompt": "x", "size": "16384x16384"}, "pixels"),
    ({"prompt": "x", "response_format": "file"}, "'b64_json' or 'url'"),
    ({"prompt": "x", "output_format": "gif"}, "`output_format` must be 'png', 'jpeg' or 'webp', not 'gif'"),
    ({"prompt": "x", "output_compression": 101}, "less than or equal to 100"),
    ({"prompt": "x", "output_compression": 50}, "`output_compression` needs `output_format: jpeg` or `webp`"),
    ({"prompt": "x", "style": "vivid"}, "`style` is not supported"),
    ({"prompt": "x", "seed": 2**64}, "less than 18446744073709551616"),
    ({"prompt": "x", "control_image": "data:image/png;base64,AAAA"}, "takes no `control_image`"),
]


@pytest.mark.parametrize(("body", "message"), PICTURE_MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_in_an_image_request(image_server: OmniServer, body: dict[str, Any], message: str) -> None:
    answer = image_server.request("POST", IMAGES, {"model": "tiny-image", **body})
    assert answer.status == 400, answer.body
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"voice": "Chelsie"}, "`input` is missing"),
        ({"input": "x", "voice": "nobody"}, "this model has Chelsie, Ethan"),
        ({"input": "x", "response_format": "ogg"}, "'mp3', 'opus', 'aac', 'flac', 'wav' or 'pcm'"),
        ({"input": "x", "speed": 2.0}, "`speed` is not supported"),
    ],
)
def test_a_mistake_in_a_speech_request(omni: OmniServer, body: dict[str, Any], message: str) -> None:
    answer = omni.request("POST", SPEECH, {"model": "tiny-omni", **body})
    assert answer.status == 400, answer.body
    assert message in answer.error["message"]


def test_an_endpoint_that_the_profile_cannot_serve(omni: OmniServer, image_server: OmniServer) -> None:
    with pytest.raises(openai.NotFoundError, match=r"makes text and audio, not image; .*tiny-image"):
        omni.client().images.generate(model="tiny-omni", prompt="a cube")
    with pytest.raises(openai.NotFoundError, match=r"makes image, not text; .*tiny-omni"):
        image_server.client().chat.completions.create(model="tiny-image", messages=HELLO)
    voices = image_server.request("GET", "/v1/audio/voices")
    assert voices.status == 404 and voices.error["code"] == "unsupported_endpoint"
    with pytest.raises(openai.NotFoundError, match="not audio"):
        image_server.client().audio.speech.create(model="tiny-image", input="x", voice="x")


def test_no_profile_embeds_text(omni: OmniServer) -> None:
    with pytest.raises(openai.NotFoundError, match="makes text and audio, not embeddings") as caught:
        omni.client().embeddings.create(model="tiny-omni", input="hello")
    assert caught.value.code == "unsupported_endpoint"
    with pytest.raises(openai.NotFoundError, match="not moderations"):
        omni.client().moderations.create(input="hello")


def test_another_model(omni: OmniServer) -> None:
    with pytest.raises(openai.NotFoundError, match="`gpt-4` is not served here; `tiny-omni` is") as caught:
        omni.client().chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"


def test_a_stream_whose_speech_fails_has_its_whole_text_and_then_the_error(omni: OmniServer) -> None:
    body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "seed": 3}
    whole = omni.request("POST", CHAT, body).document["choices"][0]["message"]["content"]
    spoken = {**body, "stream": True, "modalities": ["text", "audio"], "audio": {"voice": "nobody", "format": "pcm16"}}
    *lines, last = omni.request("POST", CHAT, spoken).body.decode().split("\n\n")[:-2]
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole
    assert "unknown speaker `nobody`" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_a_prompt_that_is_too_long_is_refused_before_a_stream_begins(omni: OmniServer) -> None:
    long = [{"role": "user", "content": "word " * 4000}]
    with pytest.raises(openai.BadRequestError, match="2048 tokens"):
        omni.client().chat.completions.create(model="tiny-omni", messages=long, stream=True)


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{", {"content_type": "application/json"}, 400, "not valid JSON"),
        (b"[" * 100_000, {"content_type": "application/json"}, 400, "JSON"),
        (b"\xff\xfe", {"content_type": "application/json"}, 400, "JSON"),
        (b"[]", {"content_type": "application/json"}, 400, "must be a JSON object"),
        (b"", {"content_type": "application/json"}, 400, "the body is missing"),
        # What a page of another site may send without asking: it must not reach a server on this machine.
        (json.dumps({"messages": HELLO}).encode(), {"content_type": "text/plain"}, 400, "Content-Type"),
        (b"{}", {"x_request_timeout": "soon"}, 400, "X-Request-Timeout"),
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            {"content_type": "application/json"},
            400,
            "valid Unicode",
        ),
        (b'{"messages": [], "seed": 1' + b"0" * 5000 + b"}", {"content_type": "application/json"}, 400, ""),
        (b'{"messages": [], "temperature": NaN}', {"content_type": "application/json"}, 400, ""),
        (b'{"\\ud800": 1}', {"content_type": "application/json"}, 400, "valid Unicode"),
        (b'{"seed": 1, "seed": 2}', {"content_type": "application/json"}, 400, 'duplicate key "seed"'),
        (b"[" * 1_000_000, {"content_type": "application/json"}, 400, "more than 100000 values"),
        (b"{}", {"origin": "http://["}, 400, "not a URL"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_garbage(omni: OmniServer, body: bytes, headers: dict[str, str], status: int, message: str) -> None:
    answer = omni.request("POST", CHAT, body, **headers)
    assert answer.status == status, answer.body
    assert message in answer.error["message"]


def test_paths_and_methods(omni: OmniServer) -> None:
    missing = omni.request("POST", "/v1/files", {})
    assert missing.status == 404 and "/v1/files" in missing.error["message"]
    wrong = omni.request("GET", CHAT)
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"
    assert omni.request("GET", "/docs").status == 404


def test_a_decompression_bomb_is_refused_by_its_header(omni: OmniServer) -> None:
    url = "data:image/png;base64," + base64.b64encode(bomb_png(20_000, 20_000)).decode()
    answer = omni.request("POST", CHAT, content(image_part(url)))
    assert answer.status == 400 and answer.error["code"] == "invalid_image"
    assert "pixels" in answer.error["message"]


def test_images_of_one_request_are_counted_together(omni: OmniServer) -> None:
    """The default is 16 Mi pixels: an image of 12 Mi is accepted (and too long for the model), two are not."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (4096, 3072)).save(buffer, "PNG")
    part = image_part("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode())
    answer = omni.request("POST", CHAT, content(part, part))
    assert answer.status == 400
    assert "messages[0].content[1]" in answer.error["message"] and "pixels" in answer.error["message"]


def test_long_audio_is_refused_by_its_header(omni: OmniServer) -> None:
    sound = encode_wav(np.zeros(301 * 1000, np.float32), 1000)
    answer = omni.request("POST", CHAT, content(audio_part(sound)))
    assert answer.status == 400
    assert "is longer than 300 s, the maximum" in answer.error["message"]
