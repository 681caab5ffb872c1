"""`--replicas` where it is not supported."""

from __future__ import annotations

import importlib.util

import pytest

from omni_cli.errors import UsageError
from omni_cli.replicas.cluster import cluster_for_replicas, ray_failure


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="Ray, which is not installed") as caught:
        cluster_for_replicas(2, verbose=True)
    assert "omni-cli[ray]" in (caught.value.hint or "")


def test_rays_message_is_shortened_to_one_line() -> None:
    said = "Deploying failed:\n  File x\nray.RayTaskError: long\nModuleNotFoundError: No module named 'omni_cli'\n"
    error = ray_failure("the replicas", said)
    assert error.message == "Ray could not run the replicas: ModuleNotFoundError: No module named 'omni_cli'"
    assert error.hint == "install omni-cli on every machine of the cluster"
    assert ray_failure("x", "").message == "Ray could not run x: no reason given"
