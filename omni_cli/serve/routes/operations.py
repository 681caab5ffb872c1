"""The served models, the state of the server, and its sleep, as vLLM's server has it."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from omni_cli.config.families import has_random_weights
from omni_cli.openai_api.replies import Health, Model, ModelList, Readiness, Sleeping, SleepStatus, WakeStatus
from omni_cli.openai_api.routes import Route
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import unix_now
from omni_cli.serve.parsed_route import ALWAYS, WITH_KEY, Responses, content, errors
from omni_cli.serve.service import Service, SleepMode

Level = Annotated[int, Query(ge=1, le=2)]
Tags = Annotated[list[Literal["weights", "kv_cache"]] | None, Query()]
_NOT_READY: Responses = {
    503: {"model": Readiness, "description": "Not ready: a stage is not loaded, or the server is stopping."}
}
_MEDIA = ("image", "audio", "video")
_METRICS = content("Prometheus' text format.", CONTENT_TYPE_LATEST)


def _describe_models(service: Service, created: int) -> dict[str, Model]:
    """Describe the model under each of its names, and its LoRA adapters."""
    text = [] if service.capabilities.transcribes else ["text"]
    own = next((stage.media for stage in service.supervisor.stages[:1]), None)
    media = [kind for kind in _MEDIA if kind in service.capabilities.fields and (own is None or kind in own)]
    model: Model = {
        "id": service.config.name,
        "object": "model",
        "created": created,
        "owned_by": "omni-cli",
        "root": service.config.model,
        "parent": None,
        "modalities": list(service.modalities),
        "input_modalities": [*text, *media],
    }
    if service.is_ready:
        model["sampling"] = {key: dict(item) for key, item in service.default_sampling.items()}
    if has_random_weights(service.config.model):
        model["random_weights"] = True
    names = [service.config.name, *(name for name in service.settings.served_model_names if name != "*")]
    served: dict[str, Model] = {name: {**model, "id": name} for name in names}
    for name, adapter in service.config.adapters.items():
        served[name] = {**model, "id": name, "root": str(adapter.path), "parent": service.config.name}
    return served


def operation_routes(service: Service) -> APIRouter:
    router = APIRouter()
    describe = functools.partial(_describe_models, service, unix_now())

    @router.get(Route.MODELS, responses=errors(*WITH_KEY))
    async def models() -> ModelList:
        """List the model that is served, under each of its names, and its LoRA adapters."""
        return {"object": "list", "data": list(describe().values())}

    @router.get(Route.MODEL, responses=errors(404, *WITH_KEY))
    async def model_named(name: str) -> Model:
        """Look up one model, by the profile's name or the checkpoint's, or a LoRA adapter."""
        service.check_model(name)
        return describe()[name if name in service.config.adapters else service.config.name]

    # Not in the document: nothing is there to be described.
    @router.post(Route.EMBEDDINGS, include_in_schema=False)
    @router.post(Route.MODERATIONS, include_in_schema=False)
    async def refuse_endpoint(request: Request) -> None:
        """Name the model that has no such endpoint."""
        made, wanted = " and ".join(service.modalities), request.url.path.rpartition("/")[2]
        message = f"profile `{service.config.name}` makes {made}, not {wanted}; no profile does"
        raise APIError(404, message, code="unsupported_endpoint")

    @router.get(Route.HEALTH, responses=errors(*ALWAYS))
    async def health() -> Health:
        """Report liveness: the server responds."""
        return {"status": "ok"}

    @router.get(Route.READY, response_model=Readiness, responses=errors(*ALWAYS) | _NOT_READY)
    async def check_ready() -> Response:
        """Report readiness: 200 while all stages are loaded and requests are accepted, else 503."""
        failed = service.supervisor.failed_stages
        loaded = "asleep" if service.supervisor.is_asleep else "ready"
        stages = {s.name: "failed" if s.name in failed else loaded for s in service.supervisor.stages}
        state = "draining" if service.is_draining else service.supervisor.state
        return JSONResponse(Readiness(status=state, stages=stages), 200 if service.is_ready else 503)

    @router.get(Route.METRICS, response_class=Response, responses=errors(*WITH_KEY) | _METRICS)
    async def metrics() -> Response:
        """Report metrics in Prometheus' text format."""
        return Response(await service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.post(Route.SLEEP, responses=errors(400, 503, *WITH_KEY))
    async def sleep(level: Level = 1, mode: SleepMode = "abort") -> SleepStatus:
        """End the requests that run, or finish them, and give the devices' memory back until `/wake_up`."""
        await service.sleep(level, mode)
        return {"status": "sleeping", "level": level}

    @router.post(Route.WAKE_UP, responses=errors(400, 503, *WITH_KEY))
    async def wake_up(tags: Tags = None) -> WakeStatus:
        """Put back weights, KV caches or, by default, both; requests run again once all is there."""
        is_awake = await service.supervisor.wake_up(tags)
        return {"status": "awake" if is_awake else "sleeping", "tags": None if tags is None else list(tags)}

    @router.get(Route.IS_SLEEPING, responses=errors(*WITH_KEY))
    async def is_sleeping() -> Sleeping:
        return {"is_sleeping": service.supervisor.is_asleep}

    return router
