"""Values of a pipeline's arguments, by the source of their annotations."""

from __future__ import annotations

import pytest

from omni_cli.diffusers_integration.value_types import converted, file_kind, is_plain, takes_list, takes_only_lists


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("float", 3, 3.0),
        ("float | int", 3, 3),
        ("int | None", None, None),
        ("Optional[float]", None, None),
        ("Union[str, List[str]]", ["a"], ["a"]),
        ("list[int] | list[list[int]]", [[1, 2], [3]], [[1, 2], [3]]),
        ("tuple[int, int]", [8, 16], (8, 16)),
        ("tuple[int, ...]", [8, 16, 24], (8, 16, 24)),
        ("list", [1, "a"], [1, "a"]),
        ("dict[str, Any] | None", {"scale": [1]}, {"scale": [1]}),
        ("torch.Tensor", [[1, 2.5]], [[1, 2.5]]),
        ("'float' | None", 0.5, 0.5),
        ("Literal['first', 'last']", "last", "last"),
        ("Any", {"x": None}, {"x": None}),
    ],
)
def test_a_value_that_fits_is_taken(annotation, value, expected):
    assert converted(annotation, value) == expected and type(converted(annotation, value)) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("float", True),
        ("float", "3"),
        ("float", float("nan")),
        ("float", None),
        ("int", 1.5),
        ("bool", 1),
        ("str", 1),
        ("list[int]", [1, "a"]),
        ("list[int]", 1),
        ("tuple[int, int]", [1, 2, 3]),
        ("torch.Tensor", [["a"]]),
        ("torch.Tensor", []),
        ("Literal['first', 'last']", "middle"),
        ("Callable[[int, int], None]", 1),
        ("dict[str, Any]", [1]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(annotation, value):
    with pytest.raises(ValueError):
        converted(annotation, value)


def test_files_hold_images_or_tensors_as_the_type_says():
    assert file_kind("PipelineImageInput | None") == file_kind("list[PIL.Image.Image]") == "image"
    assert file_kind("torch.Tensor | PIL.Image.Image") == "image"
    assert file_kind("torch.Tensor | list[torch.Tensor]") == "tensor"
    assert file_kind("str | list[str] | None") is file_kind("Callable[[int, torch.Tensor], None]") is None
    assert takes_list("PipelineImageInput") and not takes_list("PIL.Image.Image")
    assert takes_only_lists("list[PIL.Image.Image] | None") and not takes_only_lists("PipelineImageInput")
    assert is_plain("torch.Tensor") and not is_plain("torch.Tensor", tensors=False)
    assert not is_plain("LTXVideoCondition | list[LTXVideoCondition] | None")
