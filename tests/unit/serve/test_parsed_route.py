"""JSON bodies: what is refused, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from omni_cli.serve import parsed_route
from omni_cli.serve.errors import APIError
from omni_cli.serve.schemas.chat import ChatCompletionRequest

MAX_VALUES = 100_000
MIB = 2**20
HELLO = [{"role": "user", "content": "x"}]


def validate(document: object, _values: object, *, loc: tuple[str, ...]) -> tuple[object, list[Any]]:
    try:
        return TypeAdapter(ChatCompletionRequest).validate_python(document), []
    except ValidationError as failure:
        return None, [{**error, "loc": (*loc, *error["loc"])} for error in failure.errors(include_url=False)]


def read(body: bytes) -> Any:
    return parsed_route._read_json(body, validate)


def refusal(body: bytes) -> str:
    with pytest.raises(APIError) as caught:
        read(body)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 32 * MIB, "more than 100000 values"),
        (b'{"a":' * 6 * MIB, "more than 100000 values"),
        (b'{"a":' * 50_000, "recursion limit exceeded"),
        (b"[" + b"{}," * 10 * MIB + b"{}]", "more than 100000 values"),
        (b"[" + b'"",' * 10 * MIB + b'""]', "more than 100000 values"),
        (b'{"seed":' + b"1" * 30 * MIB + b"}", "number out of range"),
        (b'{"seed": 1, "seed": 2}', 'duplicate key "seed"'),
        (b'{"metadata": {"a": 1, "a": 2}}', 'duplicate key "a"'),
        (b'{"temperature": NaN}', "expected value"),
        (b'{"\\ud800": 1}', "not valid Unicode text"),
        (b'{"a": "\\udfff"}', "not valid Unicode text"),
        (b'{"a": "\xff"}', "invalid unicode"),
    ],
    ids=lambda value: str(value[:24]),
)
def test_what_cannot_be_read(body: bytes, message: str) -> None:
    assert message in refusal(body)


def test_punctuation_in_text_is_no_value() -> None:
    for text in (",[{" * MAX_VALUES, '"' * MAX_VALUES, "\\" * MAX_VALUES, '\\",' * MAX_VALUES):
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        assert read(body).messages[0].content == text
    many = json.dumps({"messages": HELLO, "stop_token_ids": [1] * 99_000})
    assert len(read(many.encode()).stop_token_ids) == 99_000


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "stop_token_ids": [True] * 90_000},
        {"messages": [{"role": "user", "content": [0] * 90_000}]},
        {"messages": [0] * 90_000},
        {"messages": HELLO, **{f"k{number}": 0 for number in range(90_000)}},
    ],
    ids=["ids", "parts", "messages", "fields"],
)
def test_many_mistakes_are_reported_as_few(body: dict[str, Any]) -> None:
    with pytest.raises(RequestValidationError) as caught:
        read(json.dumps(body).encode())
    assert len(caught.value.errors()) <= 3


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert read(b"\xef\xbb\xbf" + json.dumps({"messages": HELLO}).encode()).messages[0].content == "x"
