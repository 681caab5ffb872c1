"""What models there are, and how the server is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from omni_cli.serve.exchange import unix_now
from omni_cli.serve.service import Service


def operation_routes(service: Service) -> APIRouter:
    router = APIRouter()
    model = {
        "id": service.config.name,
        "object": "model",
        "created": unix_now(),
        "owned_by": "omni-cli",
        "root": service.config.model,
        "modalities": list(service.modalities),
    }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def model_named(name: str) -> dict[str, Any]:
        """One model; its checkpoint's name is its name as well."""
        service.check_model(name)
        return model

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: the server answers."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> Response:
        """Readiness: 200 while all stages are up and requests are taken, else 503."""
        failed = service.supervisor.failed_stages
        stages = {s.name: "failed" if s.name in failed else "ready" for s in service.supervisor.stages}
        state = "draining" if service.is_draining else service.supervisor.state.value
        return JSONResponse({"status": state, "stages": stages}, 200 if service.is_ready else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
