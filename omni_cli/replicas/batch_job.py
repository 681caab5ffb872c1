"""A file of requests on several replicas, through Ray Data."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from omni_cli.config.engine_config import EngineConfig
from omni_cli.errors import OmniError
from omni_cli.inputs.request_spec import RequestSpec
from omni_cli.outputs import StageInfo
from omni_cli.replicas.batch_replica import BatchAnswer, BatchReplica
from omni_cli.replicas.cluster import RayCluster, ray_failure, replica_resources
from omni_cli.replicas.process import ReplicaSpec
from omni_cli.replicas.stages import ReplicaStages

# An engine batches what is inside; more requests at once only wait there.
REQUESTS_A_REPLICA = 32
# Every task is a lease and a transfer: of many short requests, several share one.
_MOST_TASKS = 2048
_JOIN_S = 10.0


class BatchJob:
    """Runs requests on `replicas` engines; use it once.

    Ray runs the requests of a replica that is killed again, on another one or on the one that takes its place.
    """

    def __init__(self, config: EngineConfig, replicas: int, *, verbose: bool) -> None:
        """Raises `UsageError` where Ray is not installed."""
        self.config = config
        self._verbose = verbose
        self._replicas = replicas
        self._cluster = RayCluster(replicas, verbose=verbose)
        self._stages = ReplicaStages(replicas)
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Of all replicas that have answered, together."""
        return self._stages.merged

    async def answers(self, specs: Mapping[int, RequestSpec]) -> AsyncGenerator[tuple[int, BatchAnswer], None]:
        """(key of `specs`, answer) of each request, as they end. Raises `OmniError` where nothing can be run."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, BatchAnswer] | BaseException | None] = asyncio.Queue()

        def put(item: tuple[int, BatchAnswer] | BaseException | None) -> None:
            if not self._is_stopped.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            try:
                for row in self._rows(list(specs.items())):
                    put((int(row["index"]), pickle.loads(row["answer"])))
                put(None)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits for it
                put(error)

        self._thread = threading.Thread(target=work, name="omni-ray-data", daemon=True)
        self._thread.start()
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise _as_omni_error(item)
            index, answer = item
            if answer.stages:
                self._stages.heard(answer.replica, answer.stages)
            yield index, answer

    async def close(self) -> None:
        """End the replicas, also in the middle of a request. Idempotent."""
        self._is_stopped.set()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._cluster.close()
        if self._thread is not None:
            # Ray's answer to whatever it waits for is an error now.
            self._thread.join(_JOIN_S)

    def _rows(self, specs: Sequence[tuple[int, RequestSpec]]) -> Any:
        self._cluster.connect()
        import ray.data

        resources = replica_resources(self.config, self._replicas)
        items = [{"index": index, "spec": pickle.dumps(_absolute(spec))} for index, spec in specs]
        # Of few requests, the replica that is up first must not take all.
        inside = min(REQUESTS_A_REPLICA, -(-len(items) // self._replicas))
        pool = ray.data.ActorPoolStrategy(
            size=self._replicas, max_tasks_in_flight_per_actor=inside, max_concurrent_calls_per_actor=inside
        )
        spec = ReplicaSpec(self.config, self._verbose, self._cluster.scratch)
        dataset = ray.data.from_items(items, override_num_blocks=min(len(items), _MOST_TASKS))
        return dataset.map(BatchReplica, fn_constructor_args=(spec,), compute=pool, **resources).iter_rows()


def _absolute(spec: RequestSpec) -> RequestSpec:
    """Its files by names that mean the same in another process."""
    return dataclasses.replace(
        spec,
        audio=tuple(path.absolute() for path in spec.audio),
        image=tuple(path.absolute() for path in spec.image),
    )


def _as_omni_error(error: BaseException) -> OmniError:
    if isinstance(error, OmniError):
        return error
    failure = ray_failure("the requests", str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure
