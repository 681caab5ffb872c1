"""The Ray cluster that replicas run on: an existing one, or one of this machine for as long as the command runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from typing import Any

from omni_cli.config.engine_config import EngineConfig
from omni_cli.engine.temporary_folder import temporary_folder
from omni_cli.errors import OmniError, UsageError
from omni_cli.replicas.quiet import QuietRay

# What Ray puts behind its folder: `/session_2026-11-20_19-08-08_333811_14299/sockets/plasma_store` and an index.
_SOCKET_ROOM = 80


class RayCluster:
    """`connect` joins the cluster that `RAY_ADDRESS` names, or starts one here; `close` leaves it as it was found."""

    def __init__(self, replicas: int, *, verbose: bool) -> None:
        """Raises `UsageError` where Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "`--replicas` runs on Ray, which is not installed",
                hint="install the extra `ray`: `pip install 'omni-cli[ray]'`",
            )
        self._replicas = replicas
        self._folder: str | None = None
        self._address = os.environ.get("RAY_ADDRESS")
        self._quiet = QuietRay()
        if not verbose:
            self._quiet.begin()
        if not self._address:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

    def connect(self) -> None:
        """Takes seconds; call it in another thread, where Ray leaves signals alone. Raises `OmniError`."""
        import ray

        self._quiet.hush()
        settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        try:
            if self._address:
                ray.init(address=self._address, **settings)
            else:
                self._folder = tempfile.mkdtemp(prefix="omni-ray-", dir=temporary_folder(_SOCKET_ROOM))
                # Replicas on a machine with fewer cores share them, as any other processes would.
                cpus = max(os.cpu_count() or 1, self._replicas)
                ray.init("local", num_cpus=cpus, include_dashboard=False, _temp_dir=self._folder, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            self.close()
            where = f"no Ray cluster answers at `{self._address}`" if self._address else "Ray cannot be started here"
            reason = str(error).strip().partition("\n")[0]
            hint = "see RAY_ADDRESS; without it, Ray is started on this machine" if self._address else None
            raise OmniError(f"{where}: {reason}", hint=hint) from error

    def close(self) -> None:
        """End what this command has on the cluster, and a cluster that was started here. Idempotent."""
        import ray

        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._quiet.end()


def replica_resources(config: EngineConfig, replicas: int) -> dict[str, float]:
    """What each replica takes of the cluster: a processor, and as many GPUs as its stages use, if there are any.

    Raises `UsageError` for more replicas than there will ever be room for.
    """
    import ray

    there = ray.cluster_resources()
    needed: dict[str, float] = {"CPU": 1}
    if there.get("GPU"):
        needed["GPU"] = _num_devices(config)
    for name, number in needed.items():
        total, room = there.get(name, 0), int(there.get(name, 0) // number)
        if room < replicas:
            raise UsageError(
                f"{replicas} replicas need {replicas * number:g} {name}s, and the Ray cluster has {total:g}",
                hint=f"`--replicas {room}` fits" if room else None,
            )
    return {f"num_{name.lower()}s": number for name, number in needed.items()}


def _num_devices(config: EngineConfig) -> int:
    named = {device.strip() for stage in config.stages for device in (stage.devices or "").split(",") if device.strip()}
    ranks = max(stage.tensor_parallel_size * stage.pipeline_parallel_size for stage in config.stages)
    return max(len(named), ranks)
