"""Fields are declared by their class's own library: dataclasses' `field` itself would be the default of a struct."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import omni_cli

ROOT = Path(omni_cli.__file__).parent
STRUCT = "class A(Struct):\n    a: dict[str, int] = field(default_factory=dict)"


def find_foreign_fields(source: str) -> Iterator[str]:
    """Yield the fields that are declared by `field` of dataclasses in other classes, or in a dataclass by another."""
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    homes = {item.name: node.module for node in imports for item in node.names if item.name == "field"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        own = "dataclasses" if any("dataclass" in ast.unparse(item) for item in node.decorator_list) else "msgspec"
        for line in node.body:
            value = line.value if isinstance(line, ast.AnnAssign) else None
            called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
            home = homes.get("field") if called == "field" else called.removesuffix(".field")
            if called.endswith("field") and home in ("dataclasses", "msgspec") and home != own:
                yield f"{node.name}, line {line.lineno}"


def test_no_struct_has_a_field_of_dataclasses() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert not [
        f"{file.relative_to(ROOT)}: {found}" for file in files for found in find_foreign_fields(file.read_text())
    ]


@pytest.mark.parametrize(
    ("source", "number"),
    [
        (f"from dataclasses import field\n{STRUCT}", 1),
        (f"from msgspec import field\n{STRUCT}", 0),
        (f"from msgspec import field\n@dataclass(frozen=True)\n{STRUCT}", 1),
        (f"from dataclasses import field\n@dataclass\n{STRUCT}", 0),
    ],
)
def test_the_rule_sees_both_kinds(source: str, number: int) -> None:
    assert len(list(find_foreign_fields(source))) == number
