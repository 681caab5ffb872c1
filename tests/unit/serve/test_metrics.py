"""Labels of metrics: one path for each of the app's routes, and none that a client makes up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from omni_cli.config.loader import load_profile
from omni_cli.openai_api import routes as table
from omni_cli.serve.app import create_app
from omni_cli.serve.exchange import AccessLog
from omni_cli.serve.limits import ServerSettings
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.middleware import RequestMiddleware
from omni_cli.serve.service import Service


def app() -> RequestMiddleware:
    supervisor: Any = None
    log = AccessLog(io.StringIO())
    settings = ServerSettings(api_key="key", has_page=True)
    return create_app(Service(load_profile("tiny-omni"), supervisor, settings, Metrics(64), log))


def ask(served: RequestMiddleware, method: str, path: str, *, reads_all: bool = True) -> None:
    """Send a request without the key, which most routes need; its client reads the whole answer, or one piece."""
    scope = {
        "type": "http", "method": method, "path": path, "headers": [(b"host", b"localhost")], "query_string": b"",
        "http_version": "1.1", "scheme": "http", "server": None, "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip

    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    has_sent = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await has_sent.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not (reads_all and message.get("more_body")):
            has_sent.set()

    asyncio.run(served(scope, receive, send))


def paths(served: RequestMiddleware) -> set[str]:
    (family,) = (found for found in served._metrics.registry.collect() if found.name == "omni_requests")
    return {sample.labels["path"] for sample in family.samples}


def test_every_route_has_its_own_path() -> None:
    served = app()
    routes = [route for route in served._routes.routes if isinstance(route, Route)]
    own_files = {"/", "/page.css", "/page.js", "/openapi.json"}
    assert {route.path for route in routes} - own_files == {*table.Route}
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


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("answered", [True, False])
def test_only_a_client_that_disconnects_before_the_end_has_hung_up(method: str, answered: bool) -> None:
    """Servers report every client as disconnected after its answer, while a route may still close files."""
    ended: list[str] = []

    async def route(_request: Request) -> Response:
        async def content() -> AsyncIterator[bytes]:
            yield b"begun"
            if not answered:
                await asyncio.Event().wait()

        async def close_files() -> None:
            await asyncio.sleep(0.05)
            ended.append("closed")

        return StreamingResponse(content(), background=BackgroundTask(close_files))

    log = io.StringIO()
    unused: Any = None
    service = Service(load_profile("tiny-omni"), unused, ServerSettings(), Metrics(64), AccessLog(log))
    served = RequestMiddleware(Starlette(routes=[Route("/r/{name}", route, methods=[method])]), service)
    ask(served, method, "/r/x", reads_all=answered)
    (line,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert line["status"] == 200 and line.get("error") == (None if answered else "client_disconnected")
    assert ended == (["closed"] if answered else [])
    text = asyncio.run(service.metrics.text()).decode()
    assert 'omni_requests_total{path="/r/{name}",status="200"} 1.0' in text
    assert ('omni_errors_total{kind="client_disconnected"} 1.0' in text) is not answered
