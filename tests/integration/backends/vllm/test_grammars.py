"""Answers of a real engine fulfil their schemas, or a keyword is refused; the order of requests changes none."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator, validator_for
from support.random_schemas import Schema, random_schemas

from omni_cli.core.errors import StageError
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.json_schemas import check_schema
from omni_cli.requests.outputs import GenerateRequest, RequestResult, TextOutput

MAX_TOKENS = 120


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
