"""Bodies that no client would send never cause a server error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.omni_server import CHAT, IMAGES, SPEECH, OmniServer

from omni_cli.serve.schemas.chat import ChatCompletionRequest
from omni_cli.serve.schemas.images import ImageRequest
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


def test_the_openapi_document(omni: OmniServer) -> None:
    """The document describes every route and its fields."""
    document = omni.request("GET", "/openapi.json").document
    assert {CHAT, SPEECH, IMAGES, "/v1/models", "/health", "/ready", "/metrics"} <= set(document["paths"])
    schema = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    assert set(document["components"]["schemas"][name]["properties"]) == set(ChatCompletionRequest.model_fields)
