"""Types of a call's arguments, read from their annotations' source, and the values that a user can give."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from typing import Literal, TypeGuard

FileKind = Literal["image", "tensor", "media"]

_IMAGES = {"Image", "PipelineImageInput", "PipelineMaskInput"}
_TENSORS = {"Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor", "ndarray"}
_LISTS = {"list", "List", "tuple", "Tuple", "Sequence", "Iterable"}
_OBJECTS = {"dict", "Dict", "Mapping"}
_ANYTHING = {"Any", "object"}
_PLAIN = {"bool", "int", "float", "str", "Literal", "Ellipsis", "...", *_OBJECTS, *_ANYTHING}


def file_kind(annotation: str) -> FileKind | None:
    """Return the kind of file for a value: images if images are accepted, else tensors; None for plain values.

    References of a model are of any medium.
    """
    names = set(_names(_parsed(annotation)))
    if any(name.endswith("Reference") for name in names):
        return "media"
    if names & _IMAGES:
        return "image"
    return "tensor" if names & _TENSORS and not names & {"str"} else None


def alternatives(annotation: str) -> set[str]:
    """Return the names of the types that a value may have, without those of items."""
    return {_name(each) for each in _alternatives(_parsed(annotation))}


def takes_list(annotation: str) -> bool:
    """Tell whether a value may be a list."""
    return bool(alternatives(annotation) & (_LISTS | {"PipelineImageInput", "PipelineMaskInput"}))


def takes_only_lists(annotation: str) -> bool:
    """Tell whether a value other than null must be a list."""
    names = alternatives(annotation) - {"None"}
    return bool(names) and names <= _LISTS


def is_plain(annotation: str, *, tensors: bool = True) -> bool:
    """Tell whether JSON can hold some value of the type other than null; with `tensors`, lists of numbers for them."""
    return any(_is_plain(each, tensors) for each in _alternatives(_parsed(annotation)))


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Tell whether it is a number that a float can hold: JSON has whole ones of any length."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def converted(annotation: str, value: object) -> object:
    """Return a plain value for the call: lists as tuples and whole numbers as floats if the type asks for those.

    Raises `ValueError` for a value that does not fit.
    """
    for each in sorted(_alternatives(_parsed(annotation)), key=lambda each: _name(each) == "float"):
        try:
            return _converted(each, value)
        except ValueError:
            continue
    raise ValueError


@functools.cache
def _parsed(annotation: str) -> ast.expr:
    return ast.parse(annotation, mode="eval").body


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    elif isinstance(node, ast.Subscript) and _name(node) in ("Optional", "Union"):
        for each in _items(node):
            yield from _alternatives(each)
        if _name(node) == "Optional":
            yield ast.Constant(None)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _alternatives(_parsed(node.value))
    else:
        yield node


def _name(node: ast.expr) -> str:
    """Return the last part of a type's name, without its items; "None" for null."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _names(node: ast.expr) -> Iterator[str]:
    """Yield the names of all types inside, including those of list items."""
    for each in _alternatives(node):
        yield _name(each)
        if isinstance(each, ast.Subscript) and _name(each) != "Callable":
            for item in _items(each):
                yield from _names(item)


def _items(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return []
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_plain(node: ast.expr, tensors: bool) -> bool:
    name = _name(node)
    if name in _LISTS:
        return all(any(_is_plain(one, tensors) for one in _alternatives(item)) for item in _items(node))
    return name in _PLAIN or (tensors and name in _TENSORS)


def _converted(node: ast.expr, value: object) -> object:
    name = _name(node)
    if name in _LISTS and isinstance(value, list | tuple):
        return _converted_list(node, value)
    if name == "Literal" and any(ast.literal_eval(item) == value for item in _items(node)):
        return value
    if name in _TENSORS and _is_numeric(value):
        return value
    if name == "float" and is_finite_number(value):
        return float(value)
    fits = {
        "None": value is None,
        "bool": isinstance(value, bool),
        "int": is_finite_number(value) and isinstance(value, int),
        "str": isinstance(value, str),
    }
    if fits.get(name) or name in _ANYTHING or (name in _OBJECTS and isinstance(value, dict)):
        return value
    raise ValueError


def _converted_list(node: ast.expr, value: list[object] | tuple[object, ...]) -> object:
    items = _items(node)
    is_tuple = _name(node) in ("tuple", "Tuple")
    if is_tuple and len(items) > 1 and not (isinstance(items[-1], ast.Constant) and items[-1].value is Ellipsis):
        if len(items) != len(value):
            raise ValueError
        return tuple(converted(ast.unparse(item), each) for item, each in zip(items, value, strict=True))
    # `list[float, torch.Tensor]` means items of either type.
    inner = " | ".join(ast.unparse(item) for item in items if not isinstance(item, ast.Constant) or item.value is None)
    each_converted = [converted(inner, each) if inner else each for each in value]
    return tuple(each_converted) if is_tuple else each_converted


def _is_numeric(value: object) -> bool:
    """Tell whether a tensor can be made of it: a number, or nested lists of them with at least one."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_numeric, value))
    return isinstance(value, bool) or is_finite_number(value)
