"""A function does something and a value is something: neither has a bare participle or adjective for a name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import omni_cli

ROOT = Path(omni_cli.__file__).parent
IRREGULAR = {
    "bare", "begun", "bound", "broken", "built", "done", "drawn", "driven", "found", "free", "given", "gone",
    "heard", "held", "hidden", "kept", "known", "left", "lost", "made", "missing", "other", "own", "paid", "plain",
    "ready", "said", "same", "sent", "several", "short", "shown", "sold", "spare", "spent", "stuck", "taken",
    "told", "unknown", "usable", "whole", "written",
}  # fmt: skip
NO_PARTICIPLES = {"embed", "exceed", "feed", "need", "proceed", "seed", "speed"}
# Named as in Python's own libraries (`Future.done`, `asyncio.Server.sockets`), or after what the request asks for.
EXCEPTIONS = {"done", "ready", "finished", "expected", "interleaved"}


def find_bare_participles(source: str) -> Iterator[str]:
    """Yield functions, and values of the module, that have one."""
    tree = ast.parse(source)
    names = [
        (node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [(target.lineno, target.id) for target in targets if isinstance(target, ast.Name)]
    for line, name in sorted(names):
        word = name.strip("_").lower()
        is_bare = word in IRREGULAR or (re.fullmatch(r"[a-z]+ed", word) and word not in NO_PARTICIPLES)
        if is_bare and word not in EXCEPTIONS:
            yield f"line {line}: {name}"


def test_no_name_is_a_bare_participle() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for name in find_bare_participles(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_bare_participles_are_found() -> None:
    source = "_kept = 1\nseed = 2\nkept_rows = 3\nclass A:\n    def _loaded(self): ...\n    def done(self): ...\n"
    assert list(find_bare_participles(source)) == ["line 1: _kept", "line 5: _loaded"]
