"""Types of a pipeline's arguments, and the values of a request that fit them. Imports none of the types' libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeGuard

FileKind = Literal["image", "tensor", "media"]

_FILE_KINDS: tuple[FileKind, ...] = ("media", "image", "tensor")
_PLAIN_TYPES = ("None", "bool", "int", "float", "str", "Literal", "dict", "Any")


@dataclass(frozen=True)
class ValueType:
    """One of the types that a value may have.

    `name` is "None", "bool", "int", "float", "str", "Any", "Literal" (of `choices`), "list" (of `items`), "tuple" (of
    `items`, if `is_fixed` one after another), "dict" (of `keys` and `items`), a kind of file, or a class: one that is
    made of `fields`, found at `location` (`module:name`), or without `fields` one that no request can hold.
    """

    name: str
    items: tuple[Types, ...] = ()
    keys: Types = ()
    choices: tuple[object, ...] = ()
    is_fixed: bool = False
    fields: Mapping[str, Types] = field(default_factory=dict, hash=False)
    location: str = ""


Types = tuple[ValueType, ...]
"""The types of which a value must have one; () allows any."""

ANY: Types = (ValueType("Any"),)


def file_kind(types: Types) -> FileKind | None:
    """Return the kind of file for a value: images if images are accepted, else tensors; None for plain values."""
    names = {value_type.name for value_type in _with_items(types)}
    kind = next((kind for kind in _FILE_KINDS if kind in names), None)
    return None if kind == "tensor" and "str" in names else kind


def takes_only_lists(types: Types) -> bool:
    """Return True if a value other than null must be a list."""
    names = {value_type.name for value_type in types} - {"None"}
    return bool(names) and names <= {"list", "tuple"}


def class_of_fields(types: Types) -> ValueType | None:
    """Return the class among these types, or among those of list items, that is made of fields; None without one."""
    return next((value_type for value_type in _with_items(types) if value_type.fields), None)


def is_possible(types: Types) -> bool:
    """Return True if a request can hold some value other than null."""
    return not types or any(
        value_type.name in (*_PLAIN_TYPES[1:], *_FILE_KINDS)
        or value_type.fields
        or (value_type.name in ("list", "tuple") and all(map(is_possible, value_type.items)))
        for value_type in types
    )


def is_plain(types: Types) -> bool:
    """Return True if a value other than null need not be a file or a tensor."""
    return any(
        all(map(is_plain, value_type.items))
        if value_type.name in ("list", "tuple")
        else value_type.name in _PLAIN_TYPES[1:]
        for value_type in types
    )


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Return True if it is a number that a stage can be sent: JSON has whole ones of any length."""
    if isinstance(value, float):
        return abs(value) <= sys.float_info.max
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def describe_types(types: Types) -> str:
    """Return the types as text, as an annotation has them."""
    return " | ".join(dict.fromkeys(map(_describe, types))) or "Any"


def convert_value(types: Types, value: object, *, is_strict: bool = True) -> object:
    """Return a value of JSON for a pipeline's call: `@FILE` as a path, lists as tuples and whole numbers as floats.

    Values that are not JSON are files that have been read. Without `is_strict`, values fit that pipelines accept
    although their annotations do not say so: null, a number of the other kind, several files for one, tuples of another
    length, and objects and lists instead of a text. Raises `ValueError` for a value that does not fit.
    """
    # A whole number stays one where the call takes both.
    for value_type in sorted(types or ANY, key=lambda value_type: value_type.name == "float"):
        try:
            return _convert(value_type, value, is_strict)
        except ValueError:
            continue
    if value is None and not is_strict:
        return value
    raise ValueError


def _convert(one: ValueType, value: object, is_strict: bool) -> object:
    match one.name:
        case "None" if value is None:
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "int" if is_finite_number(value) and (isinstance(value, int) or not is_strict):
            return value
        case "str" if isinstance(value, str) or (isinstance(value, list | Mapping) and not is_strict):
            return value
        case "Literal" if value in one.choices:
            return value
        case "float" if is_finite_number(value):
            return float(value)
        case "Any":
            return _anything(value)
        case "list" | "tuple":
            return _list(one, value, is_strict)
        case "dict" if isinstance(value, Mapping):
            (items,) = one.items
            return {_key(one.keys, key): convert_value(items, item, is_strict=is_strict) for key, item in value.items()}
        case "image" | "tensor" | "media":
            return _file(one, value, is_strict)
        case _ if isinstance(value, Mapping) and one.fields and value.keys() <= one.fields.keys():
            return {name: convert_value(one.fields[name], item, is_strict=is_strict) for name, item in value.items()}
    raise ValueError


def _file(one: ValueType, value: object, is_strict: bool) -> object:
    if _names_file(value):
        return Path(value[1:])
    if one.name == "tensor" and _is_numeric(value):
        return value
    if isinstance(value, list | tuple) and not is_strict and any(item is not None for item in value):
        return [None if item is None else _file(one, item, is_strict) for item in value]
    if value is None or isinstance(value, str | bool | int | float | list | tuple | Mapping):
        raise ValueError
    return value


def _anything(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _anything(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_anything(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not is_finite_number(value):
        raise ValueError
    return Path(value[1:]) if _names_file(value) else value


def _names_file(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) > 1 and value[0] == "@"


def _list(one: ValueType, value: object, is_strict: bool) -> object:
    any_item = tuple(item for types in one.items for item in types)
    if not isinstance(value, list | tuple):
        # One file, which the caller puts into a list unless it is a whole video.
        if is_strict or file_kind(any_item) is None:
            raise ValueError
        return convert_value(any_item, value, is_strict=is_strict)
    if one.is_fixed and is_strict and len(one.items) != len(value):
        raise ValueError
    of_each = one.items if one.is_fixed and len(one.items) == len(value) else [any_item] * len(value)
    converted_items = [
        convert_value(types, item, is_strict=is_strict) for types, item in zip(of_each, value, strict=True)
    ]
    return tuple(converted_items) if one.name == "tuple" else converted_items


def _key(types: Types, key: object) -> object:
    """Return a key of an object, whose numbers are text in JSON."""
    is_number = any(value_type.name == "int" for value_type in types) and not any(
        value_type.name == "str" for value_type in types
    )
    return int(key) if is_number and isinstance(key, str) else key


def _is_numeric(value: object) -> bool:
    """Return True if a tensor can be made of it: a number, or nested lists of them with at least one."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_numeric, value))
    return isinstance(value, bool) or is_finite_number(value)


def _with_items(types: Types) -> Iterator[ValueType]:
    for value_type in types:
        yield value_type
        for items in value_type.items:
            yield from _with_items(items)


def _describe(one: ValueType) -> str:
    if one.choices:
        return f"Literal[{', '.join(map(repr, one.choices))}]"
    if one.fields:
        return f"{{{', '.join(one.fields)}}}"
    inner = [describe_types(types) for types in ((one.keys, *one.items) if one.keys else one.items)]
    if one.name == "tuple" and not one.is_fixed and inner:
        inner.append("...")
    return f"{one.name}[{', '.join(inner)}]" if inner else one.name
