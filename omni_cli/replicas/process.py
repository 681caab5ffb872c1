"""What a process that Ray has started for a replica needs before an engine can run in it."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.config.engine_config import EngineConfig

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class ReplicaSpec:
    """What a replica runs; made in the command, sent to the replicas.

    `scratch` is a folder for its temporary files that the command removes, also those of a replica that was killed;
    None where replicas may be on other machines.
    """

    config: EngineConfig
    verbose: bool
    scratch: str | None = None
    threads: str | None = field(default_factory=lambda: os.environ.get(_THREADS))


def prepare_process(spec: ReplicaSpec) -> EngineConfig:
    """The configuration for this process, which is Ray's until now.

    Ray sets as many OpenMP threads as it reserves processors; a stage uses what it would use without Ray. `devices`
    count among the GPUs that Ray has given: torch counts so by itself, for stages on vLLM their names are put in.
    """
    if spec.threads is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = spec.threads
    if spec.scratch is not None:
        Path(spec.scratch).mkdir(exist_ok=True)
        os.environ["TMPDIR"], tempfile.tempdir = spec.scratch, None
    config = spec.config
    given = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if not given:
        return config
    stages = tuple(
        dataclasses.replace(stage, devices=_among(given, stage.devices)) if stage.backend == "vllm" else stage
        for stage in config.stages
    )
    return dataclasses.replace(config, stages=stages)


def _among(given: list[str], devices: str | None) -> str | None:
    """`devices` 0 and 1 are the first and the second of the given ones; names that are no numbers stay."""
    if devices is None:
        return None
    names = [name.strip() for name in devices.split(",")]
    return ",".join(given[int(name)] if name.isdigit() and int(name) < len(given) else name for name in names)


def this_replica() -> str:
    """A name of this process that no other replica has, also not the one that takes its place."""
    import ray

    name: str = ray.get_runtime_context().get_actor_id()
    return name
