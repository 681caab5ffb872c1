"""`response_format` and `structured_outputs` bind the text to a grammar, of any weights."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from support.omni_server import CHAT, OmniServer

USER: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
SCHEMA_FIELD = "response_format.json_schema.schema"
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}


def text(server: OmniServer, **fields: Any) -> str:
    answer = server.request("POST", CHAT, {"messages": USER, "max_tokens": 200, "seed": 0, **fields})
    assert answer.status == 200, answer.body
    (choice,) = json.loads(answer.body)["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def is_a_thing(found: Any) -> bool:
    return set(found) == {"colour", "count"} and found["colour"] in ("red", "blue") and 1 <= found["count"] <= 99


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "field",
    [
        {"response_format": BY_SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
    ids=("openai", "vllm", "vllm-text"),
)
def test_a_schema(omni: OmniServer, field: dict[str, Any], seed: int) -> None:
    assert is_a_thing(json.loads(text(omni, temperature=1.5, **{**field, "seed": seed})))


def test_choices_and_a_regular_expression(omni: OmniServer) -> None:
    assert text(omni, structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert re.fullmatch(r"\d{3}-\d{4}", text(omni, structured_outputs={"regex": r"\d{3}-\d{4}"}))


def test_a_grammar(omni: OmniServer) -> None:
    grammar = 'root ::= "the " colour " one"\ncolour ::= "red" | "blue"'
    assert text(omni, structured_outputs={"grammar": grammar}) in ("the red one", "the blue one")


def test_json_of_any_shape_begins_an_object(omni: OmniServer) -> None:
    """Weights that say nothing need not come to its end."""
    fields = {"messages": USER, "max_tokens": 12, "response_format": {"type": "json_object"}}
    answer = json.loads(omni.request("POST", CHAT, fields).body)
    assert answer["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_streamed_and_by_the_client_s_own_classes(omni: OmniServer) -> None:
    class Thing(BaseModel):
        colour: Literal["red", "blue"]
        happy: bool

    client = omni.client()
    chunks = client.chat.completions.create(
        model="tiny-omni",
        messages=USER,
        response_format=BY_SCHEMA,
        stream=True,
        seed=1,
        temperature=1.5,
        max_tokens=200,
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert is_a_thing(json.loads(streamed))
    answer = client.chat.completions.parse(
        model="tiny-omni", messages=USER, response_format=Thing, seed=2, temperature=1.5, max_tokens=200
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Thing)


def test_others_at_the_same_time_are_free(omni: OmniServer) -> None:
    def ask(number: int) -> dict[str, Any]:
        bound = {"response_format": BY_SCHEMA} if number % 2 else {}
        fields = {"messages": USER, "seed": number, "temperature": 1.0, "max_tokens": 120, **bound}
        return json.loads(omni.request("POST", CHAT, {**fields, "return_token_ids": True}).body)["choices"][0]

    alone = [ask(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, range(6)))
    assert [choice["token_ids"] for choice in together] == [choice["token_ids"] for choice in alone]


def test_a_spoken_answer_is_bound_too(omni: OmniServer) -> None:
    client = omni.client()
    answer = client.chat.completions.create(
        model="tiny-omni",
        messages=USER,
        modalities=["text", "audio"],
        audio={"voice": "Ethan", "format": "wav"},
        response_format=BY_SCHEMA,
        seed=0,
        temperature=1.5,
        max_tokens=200,
        extra_body={"max_audio_tokens": 8},
    )
    assert is_a_thing(json.loads(answer.choices[0].message.content or ""))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}}, SCHEMA_FIELD),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            SCHEMA_FIELD,
        ),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": 3}}, "response_format.json_schema"),
        (CHAT, {"structured_outputs": {"json": '{"not": {}}'}}, "structured_outputs.json"),
        ("/v1/completions", {"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}},
            "text.format.schema",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}},
            "text.format.schema",
        ),
        (
            CHAT,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        (CHAT, {"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ],
)
def test_the_error_of_a_field_names_it_once(omni: OmniServer, path: str, fields: dict[str, Any], param: str) -> None:
    prompt = {CHAT: {"messages": USER}, "/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}[path]
    answer = omni.request("POST", path, {**prompt, **fields})
    assert answer.status == 400 and answer.error["param"] == param and f"`{param}`" in answer.error["message"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stop": ["a"] * 17}, "`stop`: List should have at most 16 items"),
        ({"structured_outputs": {"regex": "(a"}}, "`structured_outputs`: Grammar error"),
        ({"structured_outputs": {"grammar": "root ::= b"}}, "`structured_outputs`: Invalid grammar"),
    ],
)
def test_the_error_names_the_field_and_the_cause(omni: OmniServer, fields: dict[str, Any], says: str) -> None:
    answer = omni.request("POST", CHAT, {"messages": USER, **fields})
    assert answer.status == 400 and answer.error["message"].startswith(says)


def test_white_space_does_not_fill_an_answer(omni: OmniServer) -> None:
    """Weights that prefer it get no more than a blank between the tokens of JSON."""
    blanks = {str(token): 100 for text in (" ", "  ", "\n", "\t", "\n\n") for token in tokens_of(omni, text)}
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3, "maxItems": 3}
    made = text(omni, structured_outputs={"json": schema}, logit_bias=blanks, temperature=0)
    assert re.fullmatch(r"\[\d(, ?\d){2}\]", made)


def tokens_of(server: OmniServer, text: str) -> list[int]:
    asked = {"prompt": text, "add_special_tokens": False}
    return list(server.request("POST", "/tokenize", asked).document["tokens"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "'json_object'"),
        ({"structured_outputs": {}}, "needs one of"),
        ({"structured_outputs": {"regex": "["}}, "regex"),
        ({"structured_outputs": {"grammar": "root :="}}, "grammar"),
        ({"structured_outputs": {"json": {"type": "thing"}}}, "type"),
        ({"structured_outputs": {"choice": []}}, "at least 1"),
        ({"structured_outputs": {"regex": "a"}, "response_format": BY_SCHEMA}, "send one of them"),
    ],
)
def test_a_mistake(omni: OmniServer, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        omni.client().chat.completions.create(model="tiny-omni", messages=USER, extra_body={"max_tokens": 5, **fields})
    assert message in caught.value.message
    assert text(omni, structured_outputs={"choice": ["yes"]}) == "yes"
