"""Replicas on Ray Serve behind the interface of `OmniLLM`, for `omni serve`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import OmniError, StageError, UsageError
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
from omni_cli.engine.replicas.delivered import Delivered
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageFailed, StageInfo, StageLoading

_LEASE_S = 2.0
_LAST_WORDS_S = 0.2


@dataclass(frozen=True)
class ReplicaStatus:
    """Also sent after the last event of each request. `load_error` is the reason why it cannot run requests."""

    replica: str
    stages: tuple[StageInfo, ...]
    load_error: OmniError | None = None


class Lease:
    """Actor that lives as long as the command that made it; applications on Ray Serve would outlive the command."""

    def hold(self) -> None:
        """Succeed while the actor is alive."""


async def _end_with(lease: Any) -> None:
    """Delete the application if the command ended without deleting it."""
    from ray import serve
    from ray.exceptions import ActorDiedError, RayError

    application = serve.get_replica_context().app_name
    while True:
        await asyncio.sleep(_LEASE_S)
        try:
            await lease.hold.remote()
        except ActorDiedError:
            await asyncio.to_thread(serve.delete, application, _blocking=False)
            return
        except RayError:
            continue  # temporarily unreachable, which does not prove its end


class ServedReplica:
    """Loads on creation. Does not raise if that fails, since Ray would wrap the error in its own message."""

    async def __init__(self, spec: ReplicaSpec, lease: object) -> None:  # type: ignore[misc] # Ray Serve awaits it
        """`lease` is a handle to the `Lease` of the command that owns this replica."""
        self._name = this_replica()
        self._watch = asyncio.create_task(_end_with(lease))
        self._engine = OmniLLM(prepare_process(spec), verbose=spec.verbose)
        self._load_error: OmniError | None = None
        self._is_loaded = False
        try:
            await self._engine.start(self._on_event)
        except OmniError as error:
            self._load_error = error
        else:
            self._is_loaded = True

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event | ReplicaStatus, None]:
        """Run `OmniLLM.generate`, then yield the replica's status."""
        if self._load_error is not None:
            stage = self._engine.config.stages[0].name
            yield RequestResult(request.request_id, (), (), StageError(self._load_error.message, stage=stage))
            return
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                yield event
        yield self.status()

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(self._name, self._engine.stages, self._load_error)

    def check_health(self) -> None:
        """Fail the health check: after a few failures Ray Serve replaces the replica."""
        if self._load_error is not None:
            raise self._load_error

    def _on_event(self, event: Event) -> None:
        """End a replica that has lost a stage: Ray sends it no more requests and starts another one."""
        if isinstance(event, StageFailed) and self._is_loaded:
            # The errors of the stage's requests are still being sent.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)

    async def __del__(self) -> None:
        # Ray Serve awaits this before it ends the process.
        await self._engine.close()


# A request during which three replicas ended may itself be the cause.
MAX_ATTEMPTS = 3
_LOOK_EVERY_S = 0.5
_HEALTH_CHECK_S = 1.0
_DEPLOYMENT = "engine"

T = TypeVar("T")


class ReplicatedEngine:
    """`replicas` engines. A request whose replica ends is rerun on another one, and the replica is replaced.

    `on_log_event(event, **fields)` receives the number of running replicas whenever it changes.
    """

    def __init__(
        self,
        config: EngineConfig,
        replicas: int,
        *,
        max_requests: int,
        on_log_event: Callable[..., None],
        verbose: bool,
    ) -> None:
        """`max_requests` limits the requests in flight per replica. Raises `UsageError` if Ray is not installed."""
        self._config = config
        self._verbose = verbose
        self._replicas = replicas
        self._max_requests = max_requests
        self._on_log_event = on_log_event
        self._cluster = cluster_for_replicas(config, replicas, verbose=verbose)
        self._name = f"omni-{config.name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._handle: Any = None
        self._stages = ReplicaStages(replicas)
        self._num_up = 0
        self._watch: asyncio.Task[None] | None = None
        # Ray must be shut down in the thread that started it, and not be used by others meanwhile.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="omni-ray-serve")

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Stages of all replicas merged, each as of its last request."""
        return self._stages.merged_stages

    @property
    def failed_stages(self) -> Mapping[str, StageError]:
        """All stages while no replica is running; Ray Serve restarts replicas."""
        if self._num_up:
            return {}
        return {stage.name: StageError("no replica is running", stage=stage.name) for stage in self._config.stages}

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        """Load all replicas. If one fails, raise its error and leave nothing running."""
        try:
            for stage in self._config.stages:
                if on_event is not None:
                    on_event(StageLoading(stage.name, stage.kind))
            await self._ask(self._deploy)
            while await self._ask(self._look) < self._replicas:
                await asyncio.sleep(_LOOK_EVERY_S)
        except BaseException:
            await self.close()
            raise
        if on_event is not None:
            for info in self.stages:
                on_event(StageLoading(info.name, info.kind, info))
        self._watch = asyncio.create_task(self._watch_replicas())

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Run `OmniLLM.generate` on one replica or, if that ends, on another."""
        delivered = Delivered()
        error: OmniError = OmniError("no replica has answered")
        for attempt in range(MAX_ATTEMPTS):
            # Ray may still route to a replica that has ended.
            await asyncio.sleep(attempt * _LOOK_EVERY_S)
            delivered.begin()
            try:
                async with aclosing(self._attempt(request)) as events:
                    async for event in events:
                        if isinstance(event, RequestResult) and is_stages_fault(event):
                            error = event.error or error
                            break
                        for rest in delivered.rest(event):
                            yield rest
                        if isinstance(event, RequestResult):
                            return
            except _ReplicaLostError as lost:
                error = lost
            except OmniError as contradiction:
                error = contradiction
                break
        yield RequestResult(request.request_id, (), (), error)

    async def restart(self, name: str) -> None:
        """Unsupported: Ray Serve replaces replicas as a whole."""
        raise StageError("replicas are replaced as a whole", stage=name)

    def check_sleep(self, level: int) -> None:
        """Unsupported: Ray Serve runs a replica or ends it."""
        raise UsageError("replicas cannot sleep", hint="start the server without `--replicas`")

    async def sleep(self, level: int, *stages: str) -> None:
        """Do nothing: `check_sleep` refuses it."""

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Do nothing: replicas are awake."""
        return True

    async def close(self) -> None:
        """End all replicas. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        await self._ask(self._close)

    async def _ask(self, question: Callable[[], T]) -> T:
        """Run a slow call to Ray in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    def _deploy(self) -> None:
        self._cluster.connect()
        import ray
        from ray import serve

        resources = replica_resources(self._config, self._replicas)
        # No proxies: requests arrive through this command's own server.
        serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False, "log_level": "ERROR"})
        deployment = serve.deployment(
            ServedReplica,
            name=_DEPLOYMENT,
            num_replicas=self._replicas,
            max_ongoing_requests=self._max_requests,
            ray_actor_options=resources,
            health_check_period_s=_HEALTH_CHECK_S,
            # This command has drained a replica that it asks to end, or nobody waits for it.
            graceful_shutdown_wait_loop_s=0.1,
        )
        spec = ReplicaSpec(self._config, self._verbose, self._cluster.scratch)
        lease = ray.remote(Lease).options(num_cpus=0).remote()
        target = serve.RunTarget(deployment.bind(spec, lease), name=self._name, route_prefix=None)
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        self._handle = handle.options(stream=True)

    def _look(self) -> int:
        """Count the running replicas. Raises a replica's load error, which Ray Serve would retry forever."""
        num_up = self._count()
        self._check_deployed()
        statuses = self._handle.options(stream=False).broadcast("status").results() if num_up else ()
        for status in statuses:
            if status.load_error is not None:
                raise status.load_error
            self._stages.update(status.replica, status.stages)
        return num_up

    def _application(self) -> Any:
        """Return Ray Serve's status of this engine's application; None if there is none."""
        from ray import serve

        return serve.status().applications.get(self._name)

    def _check_deployed(self) -> None:
        application = self._application()
        if application is not None and application.status == "DEPLOY_FAILED":
            raise ray_failure("the replicas", application.deployments[_DEPLOYMENT].message)

    def _count(self) -> int:
        if self._handle is None:
            return 0  # closed meanwhile
        application = self._application()
        deployment = None if application is None else application.deployments.get(_DEPLOYMENT)
        self._num_up = 0 if deployment is None else deployment.replica_states.get("RUNNING", 0)
        return self._num_up

    async def _watch_replicas(self) -> None:
        known = self._num_up
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            # The controller may be about to be replaced, which the next count shows.
            with contextlib.suppress(*_ray_errors()):
                await self._ask(self._count)
            if self._num_up != known:
                self._on_log_event("replicas", up=self._num_up, wanted=self._replicas)
                known = self._num_up

    async def _attempt(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        answer = self._handle.generate.remote(request)
        is_over = False
        try:
            async for event in answer:
                if isinstance(event, ReplicaStatus):
                    self._stages.update(event.replica, event.stages)
                else:
                    yield event
            is_over = True
        except _ray_errors() as error:
            is_over = True
            raise _as_omni_error(error) from error
        finally:
            if not is_over:
                answer.cancel()

    def _close(self) -> None:
        if self._handle is not None:
            from ray import serve

            self._handle = None
            with contextlib.suppress(*_ray_errors()):
                serve.delete(self._name)
        self._cluster.close()


class _ReplicaLostError(OmniError):
    pass


def _ray_errors() -> tuple[type[Exception], ...]:
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    return RayError, RayServeException


def _as_omni_error(error: Exception) -> OmniError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, OmniError):
        return cause
    return _ReplicaLostError("the replica that ran the request ended")
