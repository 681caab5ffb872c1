"""docs/architecture.md and SECURITY.md: every file, class and function that they name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "SECURITY.md")
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def named(page: str) -> list[tuple[str, str]]:
    found = re.findall(r"`((?:omni_cli|tests|benchmarks)/[\w/.]+)(?::([\w.]+))?`", (ROOT / page).read_text())
    return sorted(set(found))


def defines(path: Path, name: str) -> bool:
    """Tell whether a module defines `function`, `Class` or `Class.method`."""
    found: ast.AST = ast.parse(path.read_text())
    for part in name.split("."):
        inner = (node for node in ast.iter_child_nodes(found) if getattr(node, "name", None) == part)
        found = next(inner, ast.Pass())
    return not isinstance(found, ast.Pass)


@pytest.mark.parametrize(("page", "path", "name"), [(page, *each) for page in PAGES for each in named(page)])
def test_every_name_exists(page: str, path: str, name: str) -> None:
    assert (ROOT / path).exists(), f"{page} names {path}"
    assert not name or defines(ROOT / path, name), f"{page} names {name} in {path}"


def test_the_path_of_a_stranger_is_complete() -> None:
    questions = re.findall(r"^\| ([A-Z][^|]*\?) \| .*`", TEXT, flags=re.MULTILINE)
    assert len(questions) == 10
    assert not defines(ROOT / "omni_cli/families.py", "Family.missing")


def test_every_folder_is_in_the_table() -> None:
    packages = {f"omni_cli/{path.parent.name}" for path in (ROOT / "omni_cli").glob("*/__init__.py")}
    assert packages <= {path for path, _ in named(PAGES[0])}


def test_the_entry_point_group_is_the_one_in_use() -> None:
    (group,) = re.findall(r'\[project\.entry-points\."([\w.]+)"\]', TEXT)
    assert f'[project.entry-points."{group}"]' in (ROOT / "pyproject.toml").read_text()
    assert f'GROUP = "{group}"' in (ROOT / "omni_cli/families.py").read_text()
