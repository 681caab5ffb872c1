"""JSON Schemas that bind an answer: which keywords the grammars of an engine keep."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

# Any amount of white space, as by default, is what a small model fills an answer with.
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_NESTED_KEYS = ("allOf", "anyOf", "oneOf", "prefixItems", "additionalProperties", "additionalItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_KEYWORDS = {
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "array": "items prefixItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems",
    "object": "properties required additionalProperties patternProperties minProperties maxProperties propertyNames"
    " unevaluatedProperties dependentRequired dependentSchemas dependencies",
}
_TYPE = {keyword: kind for kind, keywords in _KEYWORDS.items() for keyword in keywords.split()}
# Any other, such as `binary` of Pydantic and `int32` of OpenAPI, binds nothing.
_FORMATS = (
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference"
    " uuid uri-template json-pointer relative-json-pointer regex"
)
# No grammar has look-around: e-mail addresses of Zod and decimals of Pydantic in other words.
_DECIMAL = "^(?!^[-+.]*$)"
_PATTERNS = {
    _DECIMAL + r"[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+-]+\.)*[A-Za-z0-9_'+-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$"
    ),
}
_NEUTRAL = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_NOTES = ("title", "description", "default", "examples", "deprecated")
# More than 128 times, which xgrammar's patterns do not compile, some after a minute.
_LONG_REPEAT = re.compile(r"[{](\d+,)?(129|1[3-9]\d|[2-9]\d\d|\d{4,})[,}]")
# Parts of a pattern, and those that mean a character which JSON escapes: xgrammar compares patterns with the JSON
# itself, and lets only the bare character through. From a class with other characters it takes these out.
_PARTS = re.compile(r"\\(?:x..|u\{[^}]*\}|u....|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_CHARACTER = r'(?:["\x00-\x1f]|\\[\\"tnrvfa]|\\(?:x|u00|u\{0*)(?:[01].|22|5[cC])\}?)'
_ESCAPES = re.compile(rf"{_CHARACTER}|\[{_CHARACTER}(?:-?{_CHARACTER})*\]", re.DOTALL)
_ALTERNATIVES = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")


def as_grammar(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without keywords that bind nothing where they are, and whose JSON is on one line."""
    return {**_bind_schema(schema), "x-guidance": _ONE_LINE}


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema; raises `ValueError`, naming the keyword, for one that llguidance does not keep."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(as_grammar(schema)))
        # At 65,535 symbols, as of `maxItems: 100000`, llguidance panics after several seconds.
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=LLParserLimits(max_grammar_size=50_000))
        error = matcher.get_error()
        matcher.compute_bitmask()
        error = error or ("`$ref` leads back to itself" if matcher.is_stopped() else "")
    except (ValueError, TypeError, LookupError, AttributeError) as failure:  # also of what is not a schema
        error = str(failure)
    if unknown := re.search(r"Unimplemented keys: (\[.*\])", error):
        error = f"no grammar keeps {', '.join(f'`{name}`' for name in json.loads(unknown[1]))}"
    if error.startswith("oneOf constraints"):
        error = "`oneOf` is kept only where its branches exclude each other by type or constants"
    if error:
        raise ValueError(" ".join(error.split()))
    return schema


def check_tag_schema(schema: Any) -> Any:
    """Return the schema as xgrammar keeps it in a tag of a tool call; raises `ValueError` for one that it does not."""
    return schema if isinstance(schema, bool) else _map(_bind_schema(check_schema(schema)), _kept_in_tag)


def _map(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change a schema, after those in it."""
    if isinstance(schema, list):
        return [_map(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    nested = {key: _map(schema[key], change) for key in schema.keys() & _NESTED_KEYS}
    for key in schema.keys() & _MAPS:
        if isinstance(schema[key], dict):
            nested[key] = {name: _map(item, change) for name, item in schema[key].items()}
    return change({**schema, **nested})


def _types(schema: dict[str, Any]) -> set[str]:
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    return {"number" if name == "integer" else name for name in names if isinstance(name, str)}


def _restate_names(root: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Say `propertyNames` of a map in keywords that the grammars keep."""
    names, values = schema.get("propertyNames"), schema.get("additionalProperties", True)
    if isinstance(names, dict) and str(names.get("$ref")).startswith("#/"):
        names = reduce(getitem, names["$ref"][2:].split("/"), root)
    if not isinstance(names, dict) or schema.keys() & {"properties", "patternProperties"}:
        return schema
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    match {key: value for key, value in names.items() if key not in _NOTES and (key, value) != ("type", "string")}:
        case {"enum": [*known], **more} if not more:
            return {**rest, "properties": dict.fromkeys(known, values), "additionalProperties": False}
        case {"pattern": pattern, **more} if not more:
            return {**rest, "patternProperties": {pattern: values}, "additionalProperties": False}
        case bound:
            return schema if bound else rest


def _bind_schema(root: dict[str, Any]) -> Any:
    return _map(root, lambda schema: _binding(_restate_names(root, schema)))


def _binding(schema: dict[str, Any]) -> dict[str, Any]:
    types, schema = _types(schema), dict(schema)
    branches = [branch for branch in schema.get("anyOf", ()) if isinstance(branch, dict)]
    if any(branch.get("type") == "number" for branch in branches):
        texts = [branch for branch in branches if str(branch.get("pattern")).startswith(_DECIMAL)]
        schema["anyOf"] = [branch for branch in schema["anyOf"] if branch not in texts]
    # The mark of a variant, which generators do not require because it has a default.
    properties = schema.get("properties", {}).items()
    marks = [name for name, one in properties if isinstance(one, dict) and {"const", "default"} <= one.keys()]
    if marks:
        schema["required"] = [*dict.fromkeys([*schema.get("required", ()), *marks])]
    if schema.get("pattern") in _PATTERNS:
        schema["pattern"] = _PATTERNS[schema["pattern"]]
    if "multipleOf" in schema and (schema.get("maximum", 0) < 0 or schema.get("exclusiveMaximum", 1) <= 0):
        raise ValueError("`multipleOf` is kept only for numbers from 0")
    return {
        key: value
        for key, value in schema.items()
        if value is not _NEUTRAL.get(key, ...)
        and not (types and key in _TYPE and _TYPE[key] not in types)
        and not (key == "format" and value not in _FORMATS.split())
    }


def _has_escaped(pattern: str) -> bool:
    return any(map(_ESCAPES.fullmatch, _PARTS.findall(pattern)))


def _in_ascii(schema: dict[str, Any]) -> dict[str, Any]:
    """Spell a pattern's other characters by their codes: beside one in a class, xgrammar keeps no escapes out."""

    def spell(pattern: str) -> str:
        return re.sub(r"[^\x00-\x7f]", lambda found: f"\\u{{{ord(found[0]):x}}}", pattern)

    named = {spell(name): values for name, values in schema.get("patternProperties", {}).items()}
    spelled = {"patternProperties": named, "pattern": spell(schema.get("pattern", ""))}
    return {**schema, **{key: spelled[key] for key in spelled.keys() & schema.keys()}}


def _kept_in_tag(schema: dict[str, Any]) -> dict[str, Any]:
    schema = _in_ascii(schema)
    pattern = schema.get("pattern", "")
    if "format" in schema:  # has a character or more, and is a note beside a whole pattern, as of Zod's
        implied = {"minLength": schema.get("minLength", 2) <= 1, "format": f"{pattern[:1]}{pattern[-1:]}" == "^$"}
        schema = {key: value for key, value in schema.items() if not implied.get(key)}
    types, keys = _types(schema), schema.keys() & {"type", *_TYPE, *_ALTERNATIVES}
    lengths, alternatives = keys & {"minLength", "maxLength"}, [name for name in _ALTERNATIVES if name in keys]
    ignored = keys & {"multipleOf"}
    if alternatives or not (types or keys & {"properties", "items"}):
        ignored |= keys - set(alternatives[:1]) - ({"type"} if keys & {"enum", "const"} else set())
    if len({type(value) for value in schema.get("enum", ())}) > len(types or _TYPE):
        ignored |= {"type"}
    if keys & {"pattern", "format"}:
        ignored |= lengths
    if "pattern" in keys and ("format" in keys or _LONG_REPEAT.search(pattern) or _has_escaped(pattern)):
        ignored |= {"pattern"}
    names = schema.get("patternProperties", ())
    if len(names) > (0 if "properties" in keys else 1) or any(map(_has_escaped, names)):
        ignored |= {"patternProperties"}
    if set(schema.get("required", ())) - schema.get("properties", {}).keys():
        ignored |= {"required"}
    if len(schema.get("allOf", ())) > 1 or not f"{schema.get('$ref', '#')}/".startswith("#/"):
        ignored |= {alternatives[0]}
    if ignored:
        raise ValueError(f"the grammar of a tool call does not keep `{min(ignored)}` here")
    # Of texts with these bounds, xgrammar lets tabs through that JSON does not have.
    pattern = f"^.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"
    if not lengths or _LONG_REPEAT.search(pattern):
        return schema
    return {**{key: value for key, value in schema.items() if key not in lengths}, "pattern": pattern}
