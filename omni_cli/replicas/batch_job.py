"""A file of requests on several replicas, through Ray Data."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import pickle
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from omni_cli.config.engine_config import EngineConfig
from omni_cli.errors import OmniError
from omni_cli.inputs.request_spec import RequestSpec
from omni_cli.outputs import StageInfo
from omni_cli.replicas.batch_replica import BatchAnswer, BatchReplica
from omni_cli.replicas.cluster import cluster_for_replicas, ray_failure, replica_resources
from omni_cli.replicas.process import ReplicaSpec
from omni_cli.replicas.stages import ReplicaStages

# An engine batches what is inside; more requests at once only wait there.
REQUESTS_A_REPLICA = 32
# Every task is a lease and a transfer: of many short requests, several share one.
_MOST_TASKS = 2048

_JOIN_S = 5.0
_RAY_DATA_THREADS = ("StreamingExecutor", "iter_threaded")


class _Interrupt(BaseException):
    """Ends a thread's wait for the next row."""


class BatchJob:
    """Runs requests on `replicas` engines; use it once.

    Ray runs the requests of a replica that is killed again, on another one or on the one that takes its place.
    """

    def __init__(self, config: EngineConfig, replicas: int, *, verbose: bool) -> None:
        """Raises `UsageError` where Ray is not installed."""
        self.config = config
        self._verbose = verbose
        self._replicas = replicas
        self._cluster = cluster_for_replicas(replicas, verbose=verbose)
        self._stages = ReplicaStages(replicas)
        self._is_stopped = threading.Event()
        self._is_waiting = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Of all replicas that have answered, together."""
        return self._stages.merged

    async def answers(self, specs: Mapping[int, RequestSpec]) -> AsyncGenerator[tuple[int, BatchAnswer], None]:
        """(key of `specs`, answer) of each request, as they end. Raises `OmniError` where nothing can be run."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, BatchAnswer] | Exception | None] = asyncio.Queue()

        def put(item: tuple[int, BatchAnswer] | Exception | None) -> None:
            if not self._is_stopped.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        self._thread = threading.Thread(target=self._work, args=(list(specs.items()), put), name="omni-ray-data")
        self._thread.start()
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise _as_omni_error(item)
            index, answer = item
            if answer.stages:
                self._stages.heard(answer.replica, answer.stages)
            yield index, answer

    async def close(self) -> None:
        """End the replicas, also in the middle of a request. Idempotent."""
        self._is_stopped.set()
        if self._thread is None:
            self._cluster.close()
            return
        if self._is_waiting.is_set():
            _interrupt(self._thread)
        await asyncio.to_thread(self._thread.join)

    def _work(
        self,
        specs: Sequence[tuple[int, RequestSpec]],
        put: Callable[[tuple[int, BatchAnswer] | Exception | None], None],
    ) -> None:
        # All in one thread: Ray takes a quarter of a minute to shut down in another one than it was started in.
        try:
            self._cluster.connect()
            self._is_waiting.set()
            if not self._is_stopped.is_set():
                for row in self._rows(specs):
                    put((int(row["index"]), pickle.loads(row["answer"])))
            self._is_waiting.clear()
            put(None)
        except _Interrupt:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by `answers`, in the thread that waits for it
            put(error)
        finally:
            self._is_waiting.clear()
            self._end()

    def _end(self) -> None:
        try:
            _wait_for_ray_data()
            self._cluster.close()
        except _Interrupt:
            # Meant for the wait, which was over when it came.
            self._cluster.close()

    def _rows(self, specs: Sequence[tuple[int, RequestSpec]]) -> Any:
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


def _interrupt(thread: threading.Thread) -> None:
    """Raise `_Interrupt` in a thread, at its next step in Python; waiting for a row is a loop of short sleeps."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Interrupt))


def _wait_for_ray_data() -> None:
    """Let its threads end: one that asks Ray something after the shutdown takes the process down."""
    for thread in threading.enumerate():
        if thread.name.startswith(_RAY_DATA_THREADS):
            thread.join(_JOIN_S)


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
