"""`/sleep`, `/wake_up` and `/is_sleeping`, as vLLM's server has them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from omni_cli.openai_api.replies import Sleeping, SleepStatus, WakeStatus
from omni_cli.openai_api.routes import Route
from omni_cli.serve.routes.documented import WITH_KEY, errors
from omni_cli.serve.service import Service, SleepMode

Level = Annotated[int, Query(ge=1, le=2)]
Tags = Annotated[list[Literal["weights", "kv_cache"]] | None, Query()]


def sleep_routes(service: Service) -> APIRouter:
    router = APIRouter()

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
