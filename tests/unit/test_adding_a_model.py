"""docs/adding-a-model.md shows all files of the package, unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-model.md"
PACKAGE = ROOT / "tests" / "packages" / "omni-toy"


def test_the_page_shows_the_package() -> None:
    shown = dict(re.findall(r"^### `(.+?)`\n\n```\w+\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))
    files = [path for pattern in ("*.toml", "*.yaml", "omni_toy/*.py") for path in PACKAGE.glob(pattern)]
    assert shown == {str(path.relative_to(PACKAGE)): path.read_text() for path in files}


def test_the_paths_that_it_names_exist() -> None:
    named = re.findall(r"`((?:tests|omni_cli)/[\w./-]+)`", PAGE.read_text())
    assert len(named) >= 3
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_sizes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    parts = re.findall(r"^\| `omni_cli/models/(\w+)` .*?\| ([\d,]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "omni_cli" / "models").glob("*/__init__.py")}
    assert {name for name, *_ in [*rows, *parts]} == folders
    for name, own, *builder in [*rows, *parts]:
        folder = ROOT / "omni_cli" / "models" / name
        checkpoint = set(folder.glob("checkpoint/*.py"))
        for shown, files in zip((own, *builder), (set(folder.rglob("*.py")) - checkpoint, checkpoint), strict=False):
            assert int(shown.replace(",", "")) == pytest.approx(sum(map(num_lines, files)), rel=0.2, abs=100), name


def num_lines(file: Path) -> int:
    return len(file.read_text().splitlines())
