"""The quick `packages_distributions` against Python's own, in this environment and on distributions made for it."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from omni_cli.core.compat.libraries import packages_distributions, quick_package_names


def test_names_are_those_of_python():
    usual, quick = metadata.packages_distributions(), packages_distributions()
    assert {name: set(quick[name]) for name in usual} == {name: set(found) for name, found in usual.items()}


def test_each_way_of_listing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = {
        "declared": {"top_level.txt": "a\nb\n", "RECORD": "c/x.py,,\n"},
        "recorded": {
            "RECORD": 'pack/x.py,,\nmodule.py,sha256=x,1\n"pack/a,b.txt",,\n../../bin/tool,,\nnote.txt,,\nfast.so,,\n'
        },
        "empty": {},
    }
    for name, contents in files.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        for file, text in contents.items():
            (folder / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with quick_package_names():
        found = metadata.packages_distributions()
    expected = {"a": "declared", "b": "declared", "pack": "recorded", "module": "recorded", "fast": "recorded"}
    assert found == {name: [distribution] for name, distribution in expected.items()}
    assert metadata.packages_distributions is not packages_distributions
