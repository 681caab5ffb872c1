"""Keywords that a grammar does not keep are refused by name; those that bind nothing where they are stay accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from omni_cli.requests.json_schemas import as_grammar, check_schema, check_tag_schema

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
OBJECT = {"type": "object", "properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}


def nested(schema: Any) -> list[dict[str, Any]]:
    return [
        schema,
        {"type": "object", "properties": {"p": schema}},
        {"type": "array", "items": {"anyOf": [{"type": "null"}, schema]}},
        {"$defs": {"part": schema}, "$ref": "#/$defs/part"},
    ]


REFUSED = {
    "not": {**DIGIT, "not": {"const": 1}},
    "if": {**OBJECT, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
    "uniqueItems": {"type": "array", "items": DIGIT, "uniqueItems": True},
    "contains": {"contains": {"const": 3}},
    "propertyNames": {"type": "object", "propertyNames": {"format": "uuid"}},
    "dependentRequired": {**OBJECT, "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {**OBJECT, "dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {**OBJECT, "dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "oneOf": {"oneOf": [DIGIT, {"type": "integer", "minimum": 0, "maximum": 5}]},
    "format": {"type": "string", "format": "iri"},
    "minProperties": {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "minProperties": 1, "maxProperties": 2},
    "look-around": {"type": "string", "pattern": "^(?!a)b$"},
    "$ref": {"$ref": "#"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_keywords_that_no_grammar_keeps(name: str) -> None:
    name_shown = "min/maxProperties" if name == "minProperties" else name
    for schema in nested(REFUSED[name])[: 1 if name == "$ref" else None]:
        with pytest.raises(ValueError) as caught:
            check_schema(schema)
        assert name_shown in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"allOf": [OBJECT, {"type": "object", "properties": {"a": {"const": 3}}}]},
        {"oneOf": [DIGIT, {"type": "string"}]},
        {"type": "integer", "multipleOf": 7, "minLength": 3, "uniqueItems": True, "format": "int32"},
        {"type": "array", "items": DIGIT, "uniqueItems": False, "propertyNames": {"pattern": "a"}},
        {"type": "object", "unevaluatedProperties": True, "contains": DIGIT},
        {"type": "boolean", "title": "t", "default": True, "examples": [1], "x-note": {"not": {}}, "nullable": True},
        {"properties": {"not": DIGIT, "if": DIGIT}, "enum": [{"not": 1}], "x-guidance": {"lenient": True}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [DIGIT]},
    ],
)
def test_keywords_that_are_kept_or_bind_nothing(schema: dict[str, Any]) -> None:
    for kept in nested(schema):
        assert check_schema(kept) is kept


VARIANTS = [
    {"type": "object", "properties": {"kind": {"const": kind, "default": kind}, "a": DIGIT}, "required": ["a"]}
    for kind in ("cat", "dog")
]
MAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
CENTS = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)"
COLOURS = {"$defs": {"Colour": {"enum": ["red", "blue"], "title": "Colour", "type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "binary"}, ['"a"'], ["1"]),
        ({"oneOf": VARIANTS, "discriminator": {"propertyName": "kind"}}, ['{"kind":"cat","a":1}'], ['{"a":1}']),
        ({"type": "string", "format": "email", "pattern": MAIL}, ['"a.b@c.de"'], ['".a@c.de"', '"a..b@c.de"']),
        ({"type": "string", "pattern": DECIMAL}, ['"1."', '"-.5"', '"+07.25"'], ['"."', '"-"', '""']),
        ({"anyOf": [{"type": "number"}, {"type": "string", "pattern": CENTS}, {"type": "null"}]}, ["1.5", "null"], []),
        (
            {**COLOURS, "propertyNames": {"$ref": "#/$defs/Colour"}, "additionalProperties": DIGIT, "type": "object"},
            ['{"red":1,"blue":2}', "{}"],
            ['{"a":1}', '{"red":"x"}'],
        ),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"a":1}'], ['{"1":1}']),
        ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": DIGIT}, ['{"ä":1}'], ["[]"]),
    ],
)
def test_what_generators_of_schemas_write_is_kept(schema: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    check_schema(schema)
    check_tag_schema(schema)
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(as_grammar(schema)))
    for text in (*right, *wrong):
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        taken = matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()
        assert taken is (text in right)


def test_options_of_the_grammar_library_are_not_the_client_s() -> None:
    with pytest.raises(ValueError, match="`not`"):
        check_schema({"x-guidance": {"lenient": True}, "type": "string", "not": {"const": "a"}})


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "integer", "multipleOf": 7}, "multipleOf"),
        ({"allOf": [OBJECT, OBJECT]}, "allOf"),
        ({"enum": [1, 5, 10], "maximum": 9}, "maximum"),
        ({"type": "string", "enum": ["a", 1]}, "type"),
        ({"anyOf": [DIGIT, {"type": "string"}], "type": "integer"}, "type"),
        ({"maximum": 9}, "maximum"),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "maxLength"),
        ({"type": "string", "pattern": "^[a-z]{1,200}$"}, "pattern"),
        ({"type": "string", "pattern": "^10[.]", "format": "ipv4"}, "pattern"),
        ({"type": "string", "pattern": r"^[A-Z]:\\[a-z]+$"}, "pattern"),
        ({"type": "object", "patternProperties": {"^a\tb$": DIGIT}}, "patternProperties"),
        ({"type": "object", "properties": {"a": DIGIT}, "required": ["b"]}, "required"),
        ({"type": "object", "properties": {"a": DIGIT}, "patternProperties": {"^b": DIGIT}}, "patternProperties"),
        ({"$defs": {"A": {"$anchor": "x", **DIGIT}}, "$ref": "#x"}, "$ref"),
    ],
)
def test_what_only_the_grammar_of_a_tool_call_does_not_keep(schema: dict[str, Any], name: str) -> None:
    for nested_schema in nested(schema)[: 1 if name == "$ref" else None]:
        check_schema(nested_schema)
        with pytest.raises(ValueError, match=f"`{name.replace('$', '[$]')}`"):
            check_tag_schema(nested_schema)


ESCAPED = [
    r'^"a"$', r'^\"$', r"^a\tb$", "^a\tb$", r"^\n+$", r"^\v$", r"^\x22$", r"^\x5C$", r"^\u0022$", r"^\u{5c}$",
    r"^[\n\r]$", r"^\a$", r'^["]$', r"^[\x00-\x1f]$", r"^\[\\$", r'^\["$',
]  # fmt: skip
PLAIN = [
    r"^.+$", r"^[^\"\\]+$", r"^[\t ]$", r'^["a]$', r"^\s*a\S\w\W\d\D$", r"^\/[\s\S]$", r"^\x41\u0041$", r"^\[a\]$",
    r"^[]\"]$", r"^[!-\]]$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", [*ESCAPED, *PLAIN])
def test_a_pattern_of_a_tool_call_means_no_character_that_json_escapes(pattern: str) -> None:
    """xgrammar would let answers through that are no JSON."""
    schema = {"type": "string", "pattern": pattern}
    if pattern in PLAIN:
        assert check_tag_schema(schema) == schema
        return
    with pytest.raises(ValueError, match="`pattern`"):
        check_tag_schema(schema)


def test_a_pattern_of_a_tool_call_is_spelled_in_ascii() -> None:
    """xgrammar would let a quote through for `[^é]`."""
    word = {"type": "string", "pattern": "^[^é\\d]\\s😀é$"}
    kept = check_tag_schema({"type": "object", "patternProperties": {"^é": word}, "additionalProperties": False})
    spelled = {"type": "string", "pattern": r"^[^\u{e9}\d]\s\u{1f600}\u{e9}$"}
    assert kept["patternProperties"] == {r"^\u{e9}": spelled}


def test_lengths_in_a_tool_call_are_a_pattern() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 3}, "b": OBJECT}}
    kept = check_tag_schema({**schema, "required": ["a"]})
    assert kept["properties"] == {"a": {"type": "string", "pattern": "^.{1,3}$"}, "b": OBJECT}
    assert check_tag_schema(True) is True


def test_texts_in_a_tool_call_whose_bounds_are_no_pattern() -> None:
    long = {"type": "string", "minLength": 1, "maxLength": 129}
    assert check_tag_schema(long) == long
    assert check_tag_schema({"type": "string", "format": "uri", "minLength": 1}) == {"type": "string", "format": "uri"}
    dated = {"type": "string", "format": "date", "pattern": "^2026-[0-9]{2}-[0-9]{2}$"}
    assert check_tag_schema(dated) == {"type": "string", "pattern": "^2026-[0-9]{2}-[0-9]{2}$"}
