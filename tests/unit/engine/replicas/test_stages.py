"""Stages of several replicas, and the devices of one."""

from __future__ import annotations

import os

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine.replicas.cluster import ReplicaSpec, ReplicaStages, prepare_process
from omni_cli.requests.outputs import StageInfo


def stage(load_s: float, host: int) -> tuple[StageInfo, ...]:
    return (StageInfo("image", "diffusion", load_s, {"device": 0, "host": host}),)


def test_memory_adds_up_and_the_slowest_load_counts() -> None:
    stages = ReplicaStages(2)
    stages.update("a", stage(1.0, 10))
    stages.update("b", stage(3.0, 20))
    stages.update("a", stage(1.0, 15))
    (merged,) = stages.merged_stages
    assert (merged.load_s, merged.peak_memory_bytes) == (3.0, {"device": 0, "host": 35})


def test_a_replica_that_was_replaced_is_forgotten() -> None:
    stages = ReplicaStages(2)
    stages.update("gone", stage(1.0, 1000))
    stages.update("b", stage(1.0, 20))
    stages.update("new", stage(1.0, 30))
    assert stages.merged_stages[0].peak_memory_bytes["host"] == 50


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore afterwards what a replica's process changes for its children."""
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [("3,5", "'0'", "3"), ("3,5", "'1'", "5"), ("3,5", "'0,1'", "3,5"), ("GPU-a", "'0'", "GPU-a"), ("", "'1'", "1")],
)
def test_devices_count_among_those_that_ray_has_given(
    monkeypatch: pytest.MonkeyPatch, visible: str, devices: str, expected: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = load_profile("tiny-omni", overrides=[f"thinker.devices={devices}"])
    prepared = prepare_process(ReplicaSpec(config, verbose=False, threads=None))
    assert prepared.stage("thinker").devices == expected


def test_torch_counts_the_devices_of_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    config = load_profile("tiny-image", overrides=["image.devices='1'"])
    assert prepare_process(ReplicaSpec(config, verbose=False, threads=None)).stage("image").devices == "1"


@pytest.mark.parametrize("threads", [None, "3"])
def test_a_stage_gets_the_commands_number_of_threads_and_not_rays(
    monkeypatch: pytest.MonkeyPatch, threads: str | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    prepare_process(ReplicaSpec(load_profile("tiny-image"), verbose=False, threads=threads))
    assert os.environ.get("OMP_NUM_THREADS") == threads
