"""Labels of metrics: one path for each of the app's routes, and none that a client makes up."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from starlette.routing import Route

from omni_cli.config.loader import load_profile
from omni_cli.serve.access_log import AccessLog
from omni_cli.serve.app import create_app
from omni_cli.serve.limits import Limits
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.middleware import RequestMiddleware
from omni_cli.serve.service import Service


def app() -> RequestMiddleware:
    supervisor: Any = None
    log = AccessLog(io.StringIO())
    return create_app(
        Service(load_profile("tiny-image"), supervisor, Limits(), Metrics(64), log), api_key="key", has_page=True
    )


def ask(served: RequestMiddleware, method: str, path: str) -> None:
    """Send a request without the key, which most routes need."""
    scope = {
        "type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "http_version": "1.1",
        "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Any) -> None:
        pass

    asyncio.run(served(scope, receive, send))


def paths(served: RequestMiddleware) -> set[str]:
    (family,) = (found for found in served._metrics.registry.collect() if found.name == "omni_requests")
    return {sample.labels["path"] for sample in family.samples}


def test_every_route_has_its_own_path() -> None:
    served = app()
    routes = [route for route in served._routes.routes if isinstance(route, Route)]
    assert len(routes) > 25
    for route in routes:
        own = route.path_format
        for name in route.param_convertors:
            own = own.replace(f"{{{name}}}", f"video_{0:032x}")
        ask(served, min(route.methods or {"GET"}), own)
    assert paths(served) == {route.path_format for route in routes}


def test_paths_that_clients_make_up_have_one_label() -> None:
    served = app()
    for path in ("/v1/audio/speech/", "/v1/videos/video_1/other", "/V1/models", "/nothing", "/v1"):
        ask(served, "GET", path)
    ask(served, "POST", "/v1/models/any/name")
    assert paths(served) == {"other", "/v1/models/{name}"}
