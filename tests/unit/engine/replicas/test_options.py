"""`--replicas` where it is not supported."""

from __future__ import annotations

import importlib.util

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import StageError, UsageError
from omni_cli.engine.replicas.cluster import cluster_for_replicas, ray_failure


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_profile("tiny-image")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="Ray, which is not installed") as caught:
        cluster_for_replicas(config, 2, verbose=True)
    assert "omni-cli[ray]" in (caught.value.hint or "")


def test_what_this_machine_cannot_run_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(StageError, match="needs a CUDA device"):
        cluster_for_replicas(load_profile("qwen2.5-omni-7b"), 2, verbose=True)
    with pytest.raises(UsageError, match="10000 replicas need 10000 CPUs, and this machine has"):
        cluster_for_replicas(load_profile("tiny-image"), 10_000, verbose=True)


def test_rays_message_is_shortened_to_one_line() -> None:
    said = "Deploying failed:\n  File x\nray.RayTaskError: long\nModuleNotFoundError: No module named 'omni_cli'\n"
    error = ray_failure("the replicas", said)
    assert error.message == "Ray could not run the replicas: ModuleNotFoundError: No module named 'omni_cli'"
    assert error.hint == "install omni-cli on every machine of the cluster"
    assert ray_failure("x", "").message == "Ray could not run x: no reason given"
