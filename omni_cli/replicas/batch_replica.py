"""One replica of a Ray Data job: takes requests of a file, returns their results."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from omni_cli.engine.describing import frame_chooser
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.errors import OmniError
from omni_cli.inputs.request_spec import RequestSpec, build_request
from omni_cli.outputs import GenerateRequest, RequestResult, StageInfo
from omni_cli.replicas.process import ReplicaSpec, prepare_process, this_replica
from omni_cli.replicas.stages import is_stages_fault

_CLOSE_S = 10.0


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
            asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result(_CLOSE_S)

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
