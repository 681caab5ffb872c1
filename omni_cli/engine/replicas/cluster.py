"""Common parts of all replicas: their Ray cluster, settings and processes, and their stages as one."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.config.schema import EngineConfig
from omni_cli.core.child_python import leave_out_current_folder
from omni_cli.core.errors import OmniError, StageError, UsageError
from omni_cli.engine.checkpoint_fit import check_start
from omni_cli.engine.devices import INSTALL_RAY, has_ray
from omni_cli.engine.ray_cluster import RayCluster
from omni_cli.requests.outputs import RequestResult, StageInfo

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class ReplicaSpec:
    """Settings of a replica; created by the command, sent to the replicas.

    The command removes `scratch`, a folder for temporary files, even those of a killed replica; None if replicas may
    run on other machines.
    """

    config: EngineConfig
    verbose: bool
    scratch: str | None = None
    threads: str | None = field(default_factory=lambda: os.environ.get(_THREADS))


def prepare_process(spec: ReplicaSpec) -> EngineConfig:
    """Return the configuration for this process, adapted from Ray's environment.

    Ray sets as many OpenMP threads as it reserves CPUs; a stage uses as many as without Ray. `devices` are indexes into
    the GPUs that Ray assigned: torch counts these by itself, while vLLM stages get the assigned ids.
    """
    leave_out_current_folder()  # on somebody else's cluster
    if spec.threads is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = spec.threads
    if spec.scratch is not None:
        Path(spec.scratch).mkdir(exist_ok=True)
        os.environ["TMPDIR"], tempfile.tempdir = spec.scratch, None
    config = spec.config
    assigned = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if not assigned:
        return config
    stages = tuple(
        stage.model_copy(update={"devices": _among(assigned, stage.devices)}) if stage.backend == "vllm" else stage
        for stage in config.stages
    )
    return config.with_stages(stages)


def _among(assigned: list[str], devices: str | None) -> str | None:
    """Map `devices` 0 and 1 to the first and second assigned device; keep names that are not numbers."""
    if devices is None:
        return None
    names = [name.strip() for name in devices.split(",")]
    return ",".join(assigned[int(name)] if name.isdigit() and int(name) < len(assigned) else name for name in names)


def this_replica() -> str:
    """Return a name of this process that no other replica has, not even its own replacement."""
    import ray

    name: str = ray.get_runtime_context().get_actor_id()
    return name


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


class ReplicaStages:
    """Last reported stages of each replica; a replaced replica is dropped."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._reported: dict[str, tuple[StageInfo, ...]] = {}

    def update(self, replica: str, stages: tuple[StageInfo, ...]) -> None:
        """Record the current stages of `replica`."""
        self._reported.pop(replica, None)
        self._reported[replica] = stages
        while len(self._reported) > self._replicas:
            # The replica with the oldest report.
            del self._reported[next(iter(self._reported))]

    @property
    def merged_stages(self) -> tuple[StageInfo, ...]:
        """Each stage once, with the longest load time and the memory of all replicas combined."""
        merged: dict[str, StageInfo] = {}
        for stages in self._reported.values():
            for stage in stages:
                merged[stage.name] = _both(merged[stage.name], stage) if stage.name in merged else stage
        return tuple(merged.values())


def is_stages_fault(result: RequestResult) -> bool:
    """True if a stage ended during the request, which need not be the cause."""
    return isinstance(result.error, StageError) and result.error.request_id is None


def _both(one: StageInfo, other: StageInfo) -> StageInfo:
    names = {*one.peak_memory_bytes, *other.peak_memory_bytes}
    peaks = {name: one.peak_memory_bytes.get(name, 0) + other.peak_memory_bytes.get(name, 0) for name in names}
    return dataclasses.replace(one, load_s=max(one.load_s, other.load_s), peak_memory_bytes=peaks)
