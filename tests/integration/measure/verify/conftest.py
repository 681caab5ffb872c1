"""Fixtures of the tests of `omni verify`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for one command."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder
