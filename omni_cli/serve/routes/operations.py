"""The served models, and the state of the server."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import Health, Model, ModelList, Readiness
from omni_cli.openai_api.routes import Route
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import unix_now
from omni_cli.serve.routes.documented import ALWAYS, WITH_KEY, Responses, content, errors
from omni_cli.serve.service import Service

_NOT_READY: Responses = {
    503: {"model": Readiness, "description": "Not ready: a stage is not loaded, or the server is stopping."}
}
_MEDIA = ("image", "audio", "video")
_METRICS = content("Prometheus' text format.", CONTENT_TYPE_LATEST)


def _served(service: Service) -> dict[str, Model]:
    """Describe the model under each of its names, and its LoRA adapters."""
    text = [] if service.capabilities.transcribes else ["text"]
    model: Model = {
        "id": service.config.name,
        "object": "model",
        "created": unix_now(),
        "owned_by": "omni-cli",
        "root": service.config.model,
        "parent": None,
        "modalities": list(service.modalities),
        "input_modalities": [*text, *(kind for kind in _MEDIA if kind in service.capabilities.fields)],
    }
    names = [service.config.name, *(name for name in service.served_model_names if name != "*")]
    served: dict[str, Model] = {name: {**model, "id": name} for name in names}
    for name, adapter in service.config.adapters.items():
        served[name] = {**model, "id": name, "root": str(adapter.path), "parent": service.config.name}
    return served


def operation_routes(service: Service) -> APIRouter:
    router = APIRouter()
    served = _served(service)

    @router.get(Route.MODELS, responses=errors(*WITH_KEY))
    async def models() -> ModelList:
        """List the model that is served, under each of its names, and its LoRA adapters."""
        return {"object": "list", "data": list(served.values())}

    @router.get(Route.MODEL, responses=errors(404, *WITH_KEY))
    async def model_named(name: str) -> Model:
        """Look up one model, by the profile's name or the checkpoint's, or a LoRA adapter."""
        service.check_model(name)
        return served[name] if name in service.config.adapters else served[service.config.name]

    # Not in the document: nothing is there to be described.
    @router.post(Route.EMBEDDINGS, include_in_schema=False)
    @router.post(Route.MODERATIONS, include_in_schema=False)
    async def unsupported(request: Request) -> None:
        """Name the model that has no such endpoint."""
        made, wanted = " and ".join(service.modalities), request.url.path.rpartition("/")[2]
        message = f"profile `{service.config.name}` makes {made}, not {wanted}; no profile does"
        raise APIError(404, message, code="unsupported_endpoint")

    @router.get(Route.HEALTH, responses=errors(*ALWAYS))
    async def health() -> Health:
        """Report liveness: the server responds."""
        return {"status": "ok"}

    @router.get(Route.READY, response_model=Readiness, responses=errors(*ALWAYS) | _NOT_READY)
    async def ready() -> Response:
        """Report readiness: 200 while all stages are loaded and requests are accepted, else 503."""
        failed = service.supervisor.failed_stages
        loaded = "asleep" if service.supervisor.is_asleep else "ready"
        stages = {s.name: "failed" if s.name in failed else loaded for s in service.supervisor.stages}
        state = "draining" if service.is_draining else service.supervisor.state.value
        readiness: Readiness = {"status": state, "stages": stages}
        return JSONResponse(readiness, 200 if service.is_ready else 503)

    @router.get(Route.METRICS, response_class=Response, responses=errors(*WITH_KEY) | _METRICS)
    async def metrics() -> Response:
        """Report metrics in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
