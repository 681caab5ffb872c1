"""Every page of docs/commands shows the output of its commands, all of which are run."""

from __future__ import annotations

import pytest
import torch
from support import command_pages
from support.samples import sample

pages = command_pages.load()
PAGES = sorted(path.name for path in pages.PAGES.glob("*.md"))
# Half a minute to a minute each; `make test-all` runs them.
LONGEST = ("bench.md", "bisect.md", "generate.md", "loadtest.md", "profile.md", "serve.md", "tune.md")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the pages show a machine without a GPU")
@pytest.mark.parametrize("name", sample(PAGES, [name for name in PAGES if name not in LONGEST]))
def test_the_page_shows_the_real_output(name: str) -> None:
    found = pages.check_page(pages.PAGES / name)
    assert not found, f"{found}\nif that is right: python scripts/command_pages.py --write docs/commands/{name}"
