"""Answers of a real engine fulfil their schemas, or a keyword is refused; the order of requests changes none."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator, validator_for

from omni_cli.core.errors import StageError
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.json_schemas import check_schema
from omni_cli.requests.outputs import GenerateRequest, RequestResult, TextOutput

MAX_TOKENS = 120
Schema = dict[str, Any]


def request(name: str, seed: int, **bound: Any) -> GenerateRequest:
    sampling = {"structured_outputs": bound, "temperature": 1.0, "max_tokens": MAX_TOKENS}
    return GenerateRequest(
        name, prompt="hello", text=TextOptions(raw=True), seed=seed, sampling=sampling, modalities=frozenset({"text"})
    )


def is_kept(schema: Schema) -> bool:
    try:
        check_schema(schema)
    except ValueError as error:
        assert str(error)
        return False
    return True


def get_text(result: RequestResult) -> TextOutput:
    assert result.error is None, result.error
    (answer,) = (output for output in result.outputs if isinstance(output, TextOutput))
    return answer


def is_valid(schema: Schema, text: str) -> bool:
    validator = validator_for(schema, default=Draft202012Validator)
    try:
        return validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def check_answers(engine: Any, schemas: list[Schema], seeds: range) -> Counter[str]:
    """Ask for each schema with each seed, twice, in random orders; return how many answers there were of each kind."""
    counts = Counter({"refused": sum(not is_kept(schema) for schema in schemas)})
    asked = [(schema, seed) for schema in schemas if is_kept(schema) for seed in seeds]
    texts: list[dict[int, str]] = []
    for order_seed in (1, 2):
        order = Random(order_seed).sample(range(len(asked)), len(asked))
        requests = [request(f"{order_seed}-{index}", asked[index][1], json=asked[index][0]) for index in order]
        results = engine.run_all(requests)
        answers = {index: get_text(result) for index, result in zip(order, results, strict=True)}
        for index, answer in answers.items():
            counts[answer.finish_reason] += 1
            if answer.finish_reason == "stop":
                assert is_valid(asked[index][0], answer.text), (asked[index][0], answer.text)
        texts.append({index: answer.text for index, answer in answers.items()})
    assert texts[0] == texts[1]
    return counts


def test_answers_fulfil_their_schemas_in_any_order(tiny_omni: Any) -> None:
    schemas = random_schemas(220, seed=0)
    counts = check_answers(tiny_omni, schemas, range(1))
    assert counts["refused"] > 50
    assert counts["stop"] > 200 and counts["length"] < counts["stop"] / 10


@pytest.mark.nightly
def test_answers_to_many_schemas(tiny_omni: Any) -> None:
    counts = check_answers(tiny_omni, random_schemas(2000, seed=1), range(2))
    assert counts["stop"] > 5000


def test_an_answer_that_cannot_fulfil_its_schema_fails(tiny_omni: Any) -> None:
    """A part that refers to itself has no values, which shows where the answer comes to it."""
    schema = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
    result = tiny_omni.run(request("no-values", 0, json={"type": "object", **schema, "additionalProperties": False}))
    assert isinstance(result.error, StageError)
    assert get_text(tiny_omni.run(request("other", 0, json={"const": 1}))).text == "1"


@pytest.mark.parametrize(
    ("kind", "bound", "expected"),
    [
        ("json_object", True, r"\{.*"),
        ("regex", "[0-9]{4}", "[0-9]{4}"),
        ("regex", "(?i)abc", "(?i)abc"),
        ("choice", ["é", "<think>", 'a "b"'], 'é|<think>|a "b"'),
        ("grammar", 'root ::= "a" | "b"', "a|b"),
        ("grammar", 'start: "a" | "b"', "a|b"),
        ("json", {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, r"\[\w+, ?\w+\]"),
    ],
)
def test_every_kind_of_constraint_after_any_other(tiny_omni: Any, kind: str, bound: Any, expected: str) -> None:
    answer = get_text(tiny_omni.run(request("any", 3, **{kind: bound})))
    assert re.fullmatch(expected, answer.text, re.DOTALL), answer.text


def random_schemas(count: int, seed: int) -> list[Schema]:
    """Draw schemas over the keywords of 2020-12 and older drafts, whose values are short."""
    random = Random(seed)
    return [_root(random) for _ in range(count)]


def _root(random: Random) -> Schema:
    schema = _schema(random, 2)
    if random.random() < 0.25:
        return {"$defs": {"part": schema, "other": _number(random)}, **_with_reference(random)}
    if random.random() < 0.1:
        return {"definitions": {"part": schema}, "$ref": "#/definitions/part", "title": "old", "x-note": {"not": {}}}
    return schema


def _with_reference(random: Random) -> Schema:
    part = {"$ref": "#/$defs/part"}
    return random.choice(
        [
            part,
            {"anyOf": [part, {"type": "null"}], "default": None},
            {"type": "array", "items": part, "minItems": 1, "maxItems": 2},
            {"type": "object", "properties": {"p": part, "o": {"$ref": "#/$defs/other"}}, "required": ["p"]}
            | {"additionalProperties": False},
            {"allOf": [part], "description": "as OpenAPI generators write it"},
        ]
    )


def _schema(random: Random, depth: int) -> Schema:
    leaves = (_number, _number, _text, _text, _constant, _mixed)
    nested = (_object, _object, _array, _tuple, _any_of, _one_of, _all_of)
    make: Any = random.choice(leaves if depth == 0 else (*leaves, *nested, *nested))
    schema: Schema = make(random) if make in leaves else make(random, depth - 1)
    if random.random() < 0.1:
        schema = schema | random.choice(
            [
                {"not": {"type": "boolean"}},
                {"if": {"type": "integer"}, "then": {"minimum": 1}},
                {"uniqueItems": True},
                {"contains": {"type": "integer"}},
                {"propertyNames": {"maxLength": 1}},
                {"dependentRequired": {"a": ["b"]}},
                {"unevaluatedProperties": False},
                {"format": "int32"},
                {"title": "a title", "examples": [1], "deprecated": True, "x-order": 1, "nullable": True},
                {"minLength": 3},
            ]
        )
    return schema


def _number(random: Random) -> Schema:
    low = random.randint(-20, 20)
    return random.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 30)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 5, "format": "int32"},
            {"type": "integer", "minimum": 0, "maximum": 300, "multipleOf": random.choice([2, 7, 10])},
            {"type": "number", "minimum": low, "maximum": low + 1, "multipleOf": 0.25},
            {"type": ["integer", "null"], "minimum": low, "maximum": low + 3},
            {"enum": [1, 5, 10, 50], "maximum": 9},
        ]
    )


def _text(random: Random) -> Schema:
    return random.choice(
        [
            {"type": "string", "minLength": random.randint(0, 2), "maxLength": random.randint(2, 5)},
            {
                "type": "string",
                "pattern": random.choice(["^[a-c]{2,4}$", "^\\d{3}-\\d{2}$", "^(yes|no)$", "^[A-Z]{1,3}$"]),
            },
            {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4},
            {"type": "string", "format": random.choice(["ipv4", "uuid", "iri", "json-pointer"])},
            {"type": "string", "pattern": "^(?!a)b$"},
            {"type": "string", "maxLength": 0},
        ]
    )


def _constant(random: Random) -> Schema:
    return random.choice(
        [
            {"const": {"a": [1, "x"], "b": None}},
            {"enum": ["red", 'a "quote"', "é", 3, None, [1]]},
            {"type": "string", "enum": ["red", "blue"]},
            {"type": "string", "enum": ["red", 1]},
            {"type": "boolean"},
            {"type": "null"},
        ]
    )


def _mixed(random: Random) -> Schema:
    return {"type": ["string", "integer"], "maxLength": random.randint(0, 3), "minimum": 0, "maximum": 9}


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(["a", "b", "not", "type", 'q"', "é"], random.randint(1, 3))
    schema: Schema = {
        "type": "object",
        "properties": {name: _schema(random, depth) for name in names},
        "required": [name for name in names if random.random() < 0.7],
        "additionalProperties": False,
    }
    if random.random() < 0.15:
        schema["patternProperties"] = {"^x_[ab]$": _number(random)}
        schema["required"] = names
        schema["maxProperties"] = len(names) + 1
    return schema


def _array(random: Random, depth: int) -> Schema:
    low = random.randint(0, 2)
    return {"type": "array", "items": _schema(random, depth), "minItems": low, "maxItems": low + 1}


def _tuple(random: Random, depth: int) -> Schema:
    parts = [_schema(random, depth), _number(random)]
    if random.random() < 0.3:
        draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
        return {**draft, "type": "array", "items": parts, "additionalItems": False, "minItems": random.randint(0, 2)}
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": random.randint(0, 2)}


def _any_of(random: Random, depth: int) -> Schema:
    return {"anyOf": [_schema(random, depth), _schema(random, depth)]}


def _one_of(random: Random, depth: int) -> Schema:
    tagged = [
        {"type": "object", "properties": {"kind": {"const": kind}, "v": part}, "required": ["kind", "v"]}
        | {"additionalProperties": False}
        for kind, part in (("a", _number(random)), ("b", _text(random)))
    ]
    overlapping = [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "integer", "minimum": 0, "maximum": 5}]
    return {"oneOf": random.choice([tagged, overlapping, [_number(random), {"type": "string", "maxLength": 3}]])}


def _all_of(random: Random, depth: int) -> Schema:
    base = _object(random, depth)
    name = next(iter(base["properties"]))
    return random.choice(
        [
            {"allOf": [base]},
            {"allOf": [base, {"type": "object", "properties": {name: {"type": ["string", "integer"]}}}]},
            {"allOf": [_number(random), {"maximum": 25}]},
            {"allOf": [{"type": "string", "maxLength": 4}, {"enum": ["yes", "no", "never"]}]},
        ]
    )
