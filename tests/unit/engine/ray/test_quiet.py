"""Ray's messages never reach stdout, where results belong, even if they are wanted on stderr."""

from __future__ import annotations

import os

import pytest

from omni_cli.engine import ray_cluster


@pytest.mark.parametrize("verbose", [False, True])
def test_nothing_goes_to_stdout_even_with_verbose(verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ray_cluster._ENVIRONMENT:
        monkeypatch.setenv(name, "of before")
    ray_cluster.QuietRay(verbose=verbose).end()
    assert {name: os.environ.get(name) for name in ray_cluster._ENVIRONMENT} == ray_cluster._ENVIRONMENT
