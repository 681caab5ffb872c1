"""`/tokenize` and `/detokenize` against transformers' own tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from support.omni_server import OmniServer

TURNS = [{"role": "user", "content": "water and"}, {"role": "assistant", "content": "fire"}]
TURNS = [*TURNS, {"role": "user", "content": "the house"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_omni_path: Path) -> Any:
    return transformers.AutoProcessor.from_pretrained(tiny_omni_path).tokenizer


def ask(server: OmniServer, **fields: Any) -> Any:
    answer = server.request("POST", "/tokenize", fields)
    assert answer.status == 200, answer.body
    assert answer.document["count"] == len(answer.document["tokens"])
    return answer.document


@pytest.mark.parametrize("text", ["the house of a friend", "häuser 水", "<|im_start|>user", "", " " * 3000])
def test_a_prompt(omni: OmniServer, tokenizer: Any, text: str) -> None:
    found = ask(omni, prompt=text, return_token_strs=True)
    assert found["tokens"] == tokenizer(text).input_ids
    assert found["token_strs"] == tokenizer.convert_ids_to_tokens(found["tokens"])
    assert found["max_model_len"] == 2048
    assert ask(omni, prompt=text)["token_strs"] is None
    answer = omni.request("POST", "/detokenize", {"tokens": found["tokens"]})
    assert answer.document == {"prompt": text}


@pytest.mark.parametrize("begins", [True, False])
def test_messages(omni: OmniServer, begins: bool) -> None:
    found = ask(omni, messages=TURNS, add_generation_prompt=begins)
    text = omni.request("POST", "/detokenize", {"tokens": found["tokens"]}).document["prompt"]
    assert text.endswith("<|im_start|>assistant\n" if begins else "the house<|im_end|>\n")
    assert [turn["content"] in text for turn in TURNS] == [True] * 3
    answer = omni.client().chat.completions.create(model="tiny-omni", messages=TURNS, max_tokens=1)
    assert (found["count"] == answer.usage.prompt_tokens) is begins


def test_several_texts_of_a_message_are_joined_as_by_vllm(omni: OmniServer, tools_server: OmniServer) -> None:
    """A template that takes parts has them without a mark between; for one that takes text, vLLM puts them on lines."""
    parts = [{"type": "text", "text": "water"}, {"type": "text", "text": "fire"}]
    for server, joined in ((omni, "waterfire"), (tools_server, "water\nfire")):
        found = [ask(server, messages=[{"role": "user", "content": content}])["tokens"] for content in (parts, joined)]
        assert found[0] == found[1]


def test_messages_with_an_image(omni: OmniServer, image_url: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": image_url}}, {"type": "text", "text": "this"}]
    messages: Any = [{"role": "user", "content": parts}]
    answer = omni.client().chat.completions.create(model="tiny-omni", messages=messages, max_tokens=1)
    found = ask(omni, messages=messages)
    assert found["count"] == answer.usage.prompt_tokens
    assert omni.request("POST", "/detokenize", {"tokens": found["tokens"]}).status == 200


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/tokenize", {}, "send one of `prompt` and `messages`"),
        ("/tokenize", {"prompt": "a", "messages": TURNS}, "send one of `prompt` and `messages`"),
        ("/tokenize", {"messages": TURNS, "chat_template": "{{ 1 }}"}, "`chat_template` is not supported"),
        ("/detokenize", {"tokens": [-1]}, "greater than or equal to 0"),
        ("/detokenize", {}, "`tokens` is missing"),
    ],
)
def test_refusals(omni: OmniServer, path: str, fields: dict[str, Any], message: str) -> None:
    answer = omni.request("POST", path, fields)
    assert answer.status == 400 and message in answer.error["message"]


def test_ids_beyond_the_vocabulary_have_no_text(omni: OmniServer) -> None:
    answer = omni.request("POST", "/detokenize", {"tokens": [2**31 - 1]})
    assert answer.document == {"prompt": ""}


def test_a_profile_without_text(image_server: OmniServer) -> None:
    for path, fields in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        answer = image_server.request("POST", path, fields)
        assert answer.status == 404 and answer.error["code"] == "unsupported_endpoint"
