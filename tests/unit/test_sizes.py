"""Files of at most 400 lines, functions of at most 60, docstring and signature included; a class name for one class.

A longer one gives its reason, in a comment that begins with `# Long:`: as a line of its own in the file, beside or
right above a function's `def`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import omni_cli

ROOT = Path(omni_cli.__file__).parent
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
REASON = "# Long: "


def too_long(source: str) -> Iterator[str]:
    """Everything too long in a file, without a reason next to it."""
    lines = source.splitlines()
    if len(lines) > MAX_FILE_LINES and not any(line.startswith(REASON) for line in lines):
        yield f"{len(lines)} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            num_lines = (node.end_lineno or 0) - first + 1
            beside = lines[max(0, first - 2) : node.body[0].lineno - 1]
            if num_lines > MAX_FUNCTION_LINES and not any(REASON in line for line in beside):
                yield f"line {first}: `{node.name}` has {num_lines} lines"


def test_files_and_functions_are_short() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    assert len(paths) > 200
    found = [f"{path.relative_to(ROOT)}: {what}" for path in paths for what in too_long(path.read_text())]
    assert not found, "\n".join(found)


def test_long_functions_and_files_are_found() -> None:
    function = "@decorated\ndef f(\n    a: int,\n) -> None:\n" + "    a += 1\n" * 57
    assert list(too_long(function)) == ["line 1: `f` has 61 lines"]
    assert list(too_long(function.replace("    a += 1\n", "", 1))) == []
    assert list(too_long("# Long: a table.\n" + function)) == []
    assert list(too_long(function.replace("def f(", "def f(  # Long: a table."))) == []
    assert list(too_long("# Short.\n" + function)) == ["line 2: `f` has 61 lines"]
    assert list(too_long("a = 1\n" * 401)) == ["401 lines"]
    assert list(too_long("# Long: a table.\n" + "a = 1\n" * 400)) == []


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
