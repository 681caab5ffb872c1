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
    """Return True if a module defines `function`, `Class` or `Class.method`."""
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
    assert len(questions) == 13
    assert not defines(ROOT / "omni_cli/config/families.py", "Family.missing")


def test_the_diagram_of_the_rooms_is_the_checked_contract() -> None:
    (diagram,) = re.findall(r"```text\n(cli .*?)```", TEXT, flags=re.DOTALL)
    (contract,) = re.findall(r"\nlayers = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), flags=re.DOTALL)
    shown = [re.split(r" {3,}", line.strip(" │├└"))[0] for line in diagram.splitlines()]
    assert re.findall(r"\w+", " ".join(shown)) == [name for name in re.findall(r"\w+", contract) if name != "__main__"]
    # One bar between rooms that import nothing of each other, as in the contract.
    assert sum(line.count("|") for line in shown) == contract.count("|")


def test_the_stars_are_at_the_rooms_that_import_torch() -> None:
    (diagram,) = re.findall(r"```text\n(cli .*?)```", TEXT, flags=re.DOTALL)
    heavy = re.compile(r"^\s*(?:import|from) (?:torch|vllm|diffusers|transformers)\b", flags=re.MULTILINE)
    found = {
        path.relative_to(ROOT / "omni_cli").parts[0].removesuffix(".py")
        for path in (ROOT / "omni_cli").rglob("*.py")
        if heavy.search(path.read_text())
    }
    assert set(re.findall(r"(\w+)\*", diagram)) == found


def test_the_diagrams_name_classes_that_exist() -> None:
    (diagram,) = re.findall(r"```text\n(user .*?)```", TEXT, flags=re.DOTALL)
    named = {*re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|OmniLLM", diagram)}
    source = "\n".join(path.read_text() for path in (ROOT / "omni_cli").rglob("*.py"))
    assert [name for name in sorted(named) if f"class {name}" not in source] == []
    # Small enough to be read at a glance.
    assert max(len(block.splitlines()) for block in re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)) <= 40


def test_the_entry_point_group_is_the_one_in_use() -> None:
    (group,) = re.findall(r'\[project\.entry-points\."([\w.]+)"\]', TEXT)
    assert f'[project.entry-points."{group}"]' in (ROOT / "pyproject.toml").read_text()
    assert f'GROUP = "{group}"' in (ROOT / "omni_cli/config/families.py").read_text()
