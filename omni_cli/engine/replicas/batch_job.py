"""Run a file of requests on several replicas through Ray Data."""

from __future__ import annotations

import asyncio
import ctypes
import pickle
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError
from omni_cli.engine.describing import frame_chooser
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.engine.replicas.cluster import (
    ReplicaSpec,
    ReplicaStages,
    cluster_for_replicas,
    is_stages_fault,
    prepare_process,
    ray_failure,
    replica_resources,
    this_replica,
)
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageInfo
from omni_cli.requests.request_spec import RequestSpec, build_request

_END_S = 10.0


@dataclass(frozen=True)
class BatchAnswer:
    """Result of one request.

    `load_error` is the reason why this replica cannot run requests, `stages` is its current state; `total_s` counts
    from the request's arrival at the replica.
    """

    result: RequestResult
    total_s: float
    replica: str
    stages: tuple[StageInfo, ...] = ()
    load_error: OmniError | None = None


class BatchReplica:
    """Map a row `{"index": int, "spec": pickled RequestSpec}` to `{"index": int, "answer": pickled BatchAnswer}`.

    Called concurrently for many rows, which the engine batches. Loads on the first call. A stage that ends is restarted
    and its requests are run once more.
    """

    def __init__(self, spec: ReplicaSpec) -> None:
        self._name = this_replica()
        self._config = prepare_process(spec)
        self._engine = OmniLLM(self._config, verbose=spec.verbose)
        self._turn = asyncio.Lock()
        self._is_loaded = False
        self._load_error: OmniError | None = None

    async def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._answer(pickle.loads(row["spec"]))
        return {"index": row["index"], "answer": pickle.dumps(answer)}

    def __del__(self) -> None:
        # Ray Data drops an unneeded replica in a thread other than the one that ran its requests.
        if self._is_loaded:
            asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result(_END_S)

    async def _answer(self, spec: RequestSpec) -> BatchAnswer:
        began_s = time.monotonic()
        try:
            request = await asyncio.to_thread(build_request, spec, self._config, partial(frame_chooser, self._config))
            await self._load()
            result = await self._run(request)
            if is_stages_fault(result):
                await self._restart()
                result = await self._run(request)
        except OmniError as error:
            result = RequestResult(spec.request_id, (), (), error)
        total_s = time.monotonic() - began_s
        return BatchAnswer(result, total_s, self._name, self._engine.stages, self._load_error)

    async def _load(self) -> None:
        async with self._turn:
            if self._load_error is not None:
                raise self._load_error
            if not self._is_loaded:
                self._loop = asyncio.get_running_loop()
                try:
                    await self._engine.start()
                except OmniError as error:
                    self._load_error = error
                    raise
                self._is_loaded = True

    async def _run(self, request: GenerateRequest) -> RequestResult:
        async for event in self._engine.generate(request):
            if isinstance(event, RequestResult):
                return event
        raise OmniError(f"request `{request.request_id}` ended without a result")

    async def _restart(self) -> None:
        async with self._turn:
            for name in tuple(self._engine.failed_stages):
                await self._engine.restart(name)


# An engine batches its requests in flight; beyond that they only queue.
REQUESTS_PER_REPLICA = 32
# Each task costs a lease and a transfer, so many short requests share one.
_MOST_TASKS = 2048

_RAY_DATA_THREADS = ("StreamingExecutor", "iter_threaded")


class _Interrupt(BaseException):
    """Ends a thread's wait for the next row."""


class BatchJob:
    """Runs requests on `replicas` engines; single use.

    Ray reruns the requests of a killed replica on another one or on its replacement.
    """

    def __init__(self, config: EngineConfig, replicas: int, *, verbose: bool) -> None:
        """Raises `OmniError` as `cluster_for_replicas` does."""
        self.config = config
        self._verbose = verbose
        self._replicas = replicas
        self._cluster = cluster_for_replicas(config, replicas, verbose=verbose)
        self._stages = ReplicaStages(replicas)
        self._is_stopped = threading.Event()
        self._is_waiting = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Stages of all replicas that have answered, merged."""
        return self._stages.merged_stages

    async def answers(self, specs: Mapping[int, RequestSpec]) -> AsyncGenerator[tuple[int, BatchAnswer], None]:
        """Yield (key of `specs`, answer) as requests finish. Raises `OmniError` if nothing can be run."""
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
                self._stages.update(answer.replica, answer.stages)
            yield index, answer

    async def close(self) -> None:
        """End the replicas, even in the middle of a request. Idempotent."""
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
        # One thread for everything, because Ray takes 15 s to shut down in a thread other than the one that started it.
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
            # The interrupt arrived after the wait that it was meant to end.
            self._cluster.close()

    def _rows(self, specs: Sequence[tuple[int, RequestSpec]]) -> Any:
        import ray.data

        resources = replica_resources(self.config, self._replicas)
        # Names of files that are valid in another process.
        named = [(index, spec.with_files(lambda path: path.absolute())) for index, spec in specs]
        items = [{"index": index, "spec": pickle.dumps(spec)} for index, spec in named]
        # With few requests, the first replica to be ready must not take them all.
        in_flight = min(REQUESTS_PER_REPLICA, -(-len(items) // self._replicas))
        pool = ray.data.ActorPoolStrategy(
            size=self._replicas, max_tasks_in_flight_per_actor=in_flight, max_concurrent_calls_per_actor=in_flight
        )
        spec = ReplicaSpec(self.config, self._verbose, self._cluster.scratch)
        dataset = ray.data.from_items(items, override_num_blocks=min(len(items), _MOST_TASKS))
        return dataset.map(BatchReplica, fn_constructor_args=(spec,), compute=pool, **resources).iter_rows()


def _interrupt(thread: threading.Thread) -> None:
    """Raise `_Interrupt` in a thread at its next Python step; waiting for a row is a loop of short sleeps."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Interrupt))


def _wait_for_ray_data() -> None:
    """Join Ray Data's threads: one that calls Ray after its shutdown crashes the process."""
    for thread in threading.enumerate():
        if thread.name.startswith(_RAY_DATA_THREADS):
            thread.join(_END_S)


def _as_omni_error(error: BaseException) -> OmniError:
    if isinstance(error, OmniError):
        return error
    failure = ray_failure("the requests", str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure
