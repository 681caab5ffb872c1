"""Bodies and headers that no client would send never cause a server error."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.omni_server import CHAT, EDITS, IMAGES, SPEECH, VIDEOS, OmniServer

from omni_cli.serve.schemas.chat import ChatCompletionRequest
from omni_cli.serve.schemas.diffusion import ImageEditRequest, ImageRequest, VideoRequest
from omni_cli.serve.schemas.speech import SpeechRequest

MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Values of such fields, valid and invalid.
words = st.sampled_from(
    ["", "x", "auto", "hello", "64x64", "0x0", "wav", "pcm", "Ethan", "user", "tiny-omni", "\0", "<|AUDIO|>"]
)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20) | words
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))

parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": scalars}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": scalars})}),
    st.fixed_dictionaries({"type": st.just("video_url"), "video_url": st.fixed_dictionaries({"url": scalars})}),
    st.fixed_dictionaries(
        {"type": st.just("input_audio"), "input_audio": st.fixed_dictionaries({"data": scalars, "format": words})}
    ),
    values,
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": scalars | st.lists(parts, max_size=3),
        }
    )
    | values,
    max_size=3,
)


def bodies(model: Any, **likely: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of a schema's fields with any values; `likely` ones are mostly valid."""
    fields = {name: likely.get(name, values) for name in model.model_fields}
    required = {name: strategy | values for name, strategy in likely.items() if name in ("messages", "input", "prompt")}
    return st.fixed_dictionaries(required, optional={k: v for k, v in fields.items() if k not in required})


def check(server: OmniServer, path: str, body: dict[str, Any]) -> None:
    # Python writes NaN and lone surrogates, which are not JSON but do arrive.
    answer = server.request("POST", path, json.dumps(body).encode(), content_type="application/json")
    assert answer.status < 500, (body, answer.body)
    if answer.status != 200:
        assert answer.error["message"]


@MANY
@given(body=bodies(ChatCompletionRequest, messages=messages, max_tokens=st.integers(1, 8)))
def test_chat(omni: OmniServer, body: dict[str, Any]) -> None:
    check(omni, CHAT, body)


@MANY
@given(body=bodies(SpeechRequest, input=words))
def test_speech(omni: OmniServer, body: dict[str, Any]) -> None:
    check(omni, SPEECH, body)


@MANY
@given(body=bodies(ImageRequest, prompt=words, num_inference_steps=st.integers(1, 3), size=words))
def test_images(image_server: OmniServer, body: dict[str, Any]) -> None:
    check(image_server, IMAGES, body)


# JSON values at the edges of their types; some are no JSON.
EDGES = (
    *("1" + "0" * 30, "-1" + "0" * 30, "9" * 5000, "1e30", "1e400", "-1e400", "NaN", "Infinity", "-Infinity"),
    *("-0", "-0.0", "0.5", "true", "null", "[]", "{}", '""', '"1"', '"NaN"', '"\\ud800"', '"\\u0000"'),
    *('["\\ud800"]', "[1e400]", f'"{"x" * 100_000}"', f"{'[' * 150}{']' * 150}"),
)
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    SPEECH: {"input": "x"},
    IMAGES: {"prompt": "x", "num_inference_steps": 1, "size": "64x64"},
    EDITS: {"prompt": "x", "num_inference_steps": 1},
    VIDEOS: {"prompt": "x", "num_inference_steps": 1, "num_frames": 1},
}


@pytest.mark.parametrize(
    ("name", "path", "model"),
    [
        ("omni", CHAT, ChatCompletionRequest),
        ("omni", SPEECH, SpeechRequest),
        ("image_server", IMAGES, ImageRequest),
        ("edit_server", EDITS, ImageEditRequest),
        pytest.param("video_server", VIDEOS, VideoRequest, marks=pytest.mark.nightly),
    ],
)
def test_edges_of_every_field(request: pytest.FixtureRequest, name: str, path: str, model: Any) -> None:
    server = request.getfixturevalue(name)
    for field in model.model_fields:
        for edge in EDGES:
            values = {name: json.dumps(value) for name, value in BASES[path].items()} | {field: edge}
            if path in (EDITS, VIDEOS):
                answer = send_form(server, path, {name: value.strip('"') for name, value in values.items()})
            else:
                body = ", ".join(f'"{name}": {value}' for name, value in values.items())
                answer = server.request("POST", path, f"{{{body}}}".encode(), content_type="application/json")
            assert answer.status < 500, (field, edge, answer.body)
            assert answer.status == 200 or len(answer.error["message"]) < 2000


def send_form(server: OmniServer, path: str, values: dict[str, str], parameters: str = "") -> Any:
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{values[name]}\r\n' for name in values]
    body = "".join([*parts, "--b--\r\n"]).encode()
    return server.request("POST", path, body, content_type=f"multipart/form-data; boundary=b{parameters}")


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "utf-16"])
def test_a_form_in_another_charset(edit_server: OmniServer, charset: str) -> None:
    """Python's decoder of punycode needs more than a minute for this field, in which nothing else was served."""
    began = time.monotonic()
    answer = send_form(edit_server, EDITS, {"user": "a" * 1_000_000}, f"; charset={charset}")
    assert answer.status == 400 and "must be utf-8" in answer.error["message"]
    assert time.monotonic() - began < 30


TOKENS = ("", "[", "http://[", "http://[::1", "http://a:99999999", "null", "*", ";", ";=;", ",", '"', "\xff\xfe", "\t")
NUMBERS = ("-1", "1e400", "NaN", "0x10", "1_0", "9" * 5000, "bytes=0-", "bytes=9-1", "x" * 10_000)
TYPES = (
    *("application/json;charset=utf-16", "application/json;charset=\xff", "application/ json", "json", "/", "a/b/c"),
    *("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\xff", "text/plain"),
    *("multipart/form-data; boundary=" + "b" * 5000, "application/x-www-form-urlencoded", "a/x+json"),
)
HEADERS = (
    *("Host", "Origin", "Sec-Fetch-Site", "Authorization", "Accept", "Accept-Encoding", "Content-Type", "Range"),
    *("Connection", "Expect", "Upgrade", "Cookie", "Referer", "X-Request-Id", "X-Request-Timeout", "X-Forwarded-For"),
)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/models", EDITS])
def test_headers(edit_server: OmniServer, method: str, path: str) -> None:
    for header in HEADERS:
        for value in (*TOKENS, *NUMBERS, *TYPES):
            body = b"{}" if method == "POST" else None
            answer = edit_server.request(method, path, body, **{header: value})
            assert answer.status < 500, (header, value, answer.body)
            assert answer.status == 200 or answer.error["message"]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/" + "x" * 10_000, "/v1/models/..%2f..%2f", "//", "/%"),
        *(f"{VIDEOS}?limit={value}" for value in ("1" + "0" * 30, "-1", "1e400", "NaN", "", "%00", "true")),
        *(f"{VIDEOS}?after={value}" for value in ("%00", "x" * 10_000, "%ed%a0%80", "")),
        *(f"{VIDEOS}?limit=1&limit=2", f"{VIDEOS}/video_%00", f"{VIDEOS}/{'x' * 10_000}/content"),
    ],
    ids=lambda path: path[:30],
)
def test_paths(edit_server: OmniServer, path: str) -> None:
    answer = edit_server.request("GET", path)
    assert answer.status in (400, 404) and len(answer.error["message"]) < 2000


def test_the_openapi_document(omni: OmniServer) -> None:
    """The document describes every route and its fields."""
    document = omni.request("GET", "/openapi.json").document
    assert {CHAT, SPEECH, IMAGES, "/v1/models", "/health", "/ready", "/metrics"} <= set(document["paths"])
    schema = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    assert set(document["components"]["schemas"][name]["properties"]) == set(ChatCompletionRequest.model_fields)
