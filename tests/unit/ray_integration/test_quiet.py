"""Ray's messages stay away from stdout, where results belong, also where they are wanted on stderr."""

from __future__ import annotations

import os

import pytest

from omni_cli.ray_integration import quiet


@pytest.mark.parametrize("verbose", [False, True])
def test_nothing_goes_to_stdout_however_much_is_wanted(verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in quiet._ENVIRONMENT:
        monkeypatch.setenv(name, "of before")
    quiet.QuietRay(verbose=verbose).end()
    assert {name: os.environ.get(name) for name in quiet._ENVIRONMENT} == quiet._ENVIRONMENT
