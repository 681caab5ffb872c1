"""docs/adding-a-model.md shows all files of the package, unchanged."""

from __future__ import annotations

import re
from pathlib import Path

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
