"""Prepare a process that Ray has started for a replica."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.child_python import leave_out_current_folder
from omni_cli.config.schema import EngineConfig

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
