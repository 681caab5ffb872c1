"""Copies of the built-in checkpoints, for tests that break them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """`copy_of("tiny-omni")` -> a folder with the built-in checkpoint's files."""
    from omni_cli.checkpoints.resolve import resolve_model

    def copy(name: str) -> Path:
        return Path(shutil.copytree(resolve_model(f"builtin:{name}"), tmp_path / "checkpoint"))

    return copy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for one command."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder
