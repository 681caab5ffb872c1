"""Ray cluster of the replicas: its resources and its failures."""

from __future__ import annotations

import os
import re

from omni_cli.config.schema import EngineConfig
from omni_cli.engine.checkpoint_fit import check_start
from omni_cli.engine.devices import INSTALL_RAY, has_ray
from omni_cli.errors import OmniError, UsageError
from omni_cli.ray_integration.cluster import RayCluster

_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b: ")


def cluster_for_replicas(config: EngineConfig, replicas: int, *, verbose: bool) -> RayCluster:
    """Create the cluster without connecting to it.

    Raises `OmniError` if Ray is not installed, or if the replicas would run on this machine and cannot.
    """
    if not has_ray():
        raise UsageError("`--replicas` runs on Ray, which is not installed", hint=INSTALL_RAY)
    if not os.environ.get("RAY_ADDRESS"):
        check_start(config)
        _check_room("CPU", replicas, 1, os.cpu_count() or 1, "this machine")
    return RayCluster(verbose=verbose)


def replica_resources(config: EngineConfig, replicas: int) -> dict[str, float]:
    """Resources per replica: one CPU and, if the cluster has GPUs, as many as its stages use.

    Raises `UsageError` if the cluster can never hold that many replicas.
    """
    import ray

    there = ray.cluster_resources()
    needed: dict[str, float] = {"CPU": 1}
    if there.get("GPU"):
        needed["GPU"] = _num_devices(config)
    for name, number in needed.items():
        _check_room(name, replicas, number, there.get(name, 0), "the Ray cluster")
    return {f"num_{name.lower()}s": number for name, number in needed.items()}


def _check_room(name: str, replicas: int, number: float, total: float, where: str) -> None:
    room = int(total // number)
    if room < replicas:
        raise UsageError(
            f"{replicas} replicas need {replicas * number:g} {name}s, and {where} has {total:g}",
            hint=f"`--replicas {room}` fits" if room else None,
        )


def _num_devices(config: EngineConfig) -> int:
    named = {name.strip() for stage in config.stages for name in (stage.devices or "").split(",")} - {"", "cpu"}
    ranks = max(stage.num_ranks for stage in config.stages)
    return max(len(named), ranks)


def ray_failure(what: str, message: str) -> OmniError:
    """Summarise Ray's message, pages of its own frames, by the line with the exception."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    reason = (exceptions or lines or ["no reason given"])[-1]
    hint = "install omni-cli on every machine of the cluster" if "omni_cli" in reason else None
    return OmniError(f"Ray could not run {what}: {reason}", hint=hint)
