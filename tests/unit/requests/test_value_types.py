"""Values of a pipeline's arguments, by their types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_cli.requests.value_types import (
    Types,
    ValueType,
    convert_value,
    describe_types,
    file_kind,
    is_plain,
    is_possible,
    takes_only_lists,
)


def types(*names: str | ValueType) -> Types:
    return tuple(ValueType(each) if isinstance(each, str) else each for each in names)


def list_of(*names: str | ValueType, name: str = "list", **others: Any) -> ValueType:
    return ValueType(name, items=(types(*names),), **others)


INTS = list_of("int")
PAIR = ValueType("tuple", items=(types("int"), types("int")), is_fixed=True)
CONDITION = ValueType("Condition", fields={"frames": types("image", list_of("image")), "index": types("int")})
NUMBERED = ValueType("dict", keys=types("int"), items=(types("str"),))
FREE = ValueType("dict", keys=types("str"), items=(types("Any"),))
FIRST_OR_LAST = ValueType("Literal", choices=("first", "last"))
CLIP = Path("clip.mp4")


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        (types("float"), 3, 3.0),
        (types("float", "int"), 3, 3),
        (types("int", "None"), None, None),
        (types("str", list_of("str")), ["a"], ["a"]),
        (types(INTS, list_of(INTS)), [[1, 2], [3]], [[1, 2], [3]]),
        (types(PAIR), [8, 16], (8, 16)),
        (types(list_of("int", name="tuple")), [8, 16, 24], (8, 16, 24)),
        (types("list"), [1, "a"], [1, "a"]),
        (types(FREE), {"scale": [1]}, {"scale": [1]}),
        (types(FREE), {1: 0.5}, {1: 0.5}),
        (types(NUMBERED), {"1": "a", 16: "b"}, {1: "a", 16: "b"}),
        (types("tensor"), [[1, 2.5]], [[1, 2.5]]),
        (types("tensor"), "@a.npy", Path("a.npy")),
        (types("str"), "@cat", "@cat"),
        (types(FIRST_OR_LAST), "last", "last"),
        ((), {"x": None}, {"x": None}),
        (types("Any"), {"x": ["@a.png"]}, {"x": [Path("a.png")]}),
        (types(list_of(CONDITION)), [{"frames": "@clip.mp4", "index": 8}], [{"frames": CLIP, "index": 8}]),
    ],
)
def test_a_value_that_fits_is_taken(of: Types, value: object, expected: object) -> None:
    found = convert_value(of, value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (types("float"), True),
        (types("float"), "3"),
        (types("float"), float("nan")),
        (types("float"), 10**400),
        (types("bool"), 1),
        (types("str"), 1),
        (types(INTS), [1, "a"]),
        (types(INTS), 1),
        (types("tensor"), [["a"]]),
        (types("tensor"), []),
        (types(FIRST_OR_LAST), "middle"),
        (types("Callable"), 1),
        (types(FREE), [1]),
        (types(CONDITION), {"frame": "@a.png"}),
        (types("image"), "a.png"),
    ],
)
def test_a_value_of_another_kind_never_fits(of: Types, value: object) -> None:
    for is_strict in (True, False):
        with pytest.raises(ValueError):
            convert_value(of, value, is_strict=is_strict)


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        (types("float"), None, None),
        (types("int"), 1.5, 1.5),
        (types(PAIR), [1, 2, 3], (1, 2, 3)),
        (types("tensor"), ["@a.npy", "@b.npy"], [Path("a.npy"), Path("b.npy")]),
        (types(list_of("image")), [["@a.png"], [None, "@b.png"]], [[Path("a.png")], [None, Path("b.png")]]),
        (types(list_of("image")), "@clip.mp4", CLIP),
        (types("str"), {"caption": "a cat"}, {"caption": "a cat"}),
    ],
)
def test_annotations_are_not_taken_at_their_word(of: Types, value: object, expected: object) -> None:
    with pytest.raises(ValueError):
        convert_value(of, value)
    assert convert_value(of, value, is_strict=False) == expected


def test_files_hold_images_or_tensors_as_the_types_say() -> None:
    assert (
        file_kind(types("image", "tensor", list_of("image"), "None")) == file_kind(types(list_of("image"))) == "image"
    )
    assert file_kind(types("tensor", list_of("tensor"))) == "tensor"
    assert file_kind(types("str", list_of("str"))) is file_kind(types("Callable")) is None
    assert takes_only_lists(types(list_of("image"), "None")) and not takes_only_lists(types("image", list_of("image")))
    assert is_plain(types("float", "tensor")) and not is_plain(types("tensor"))
    assert is_possible(types(list_of(CONDITION))) and not is_possible(types("Generator", list_of("Generator"), "None"))


def test_types_are_shown_as_an_annotation_has_them() -> None:
    assert describe_types(types("int", "None")) == "int | None"
    assert describe_types(types(PAIR, list_of("float", name="tuple"))) == "tuple[int, int] | tuple[float, ...]"
    assert describe_types(types(list_of(CONDITION), FREE)) == "list[{frames, index}] | dict[str, Any]"
    assert describe_types(types(FIRST_OR_LAST)) == "Literal['first', 'last']" and describe_types(()) == "Any"
