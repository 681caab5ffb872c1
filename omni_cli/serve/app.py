"""The application: routes behind their middleware, every failure in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from omni_cli import __version__
from omni_cli.core.errors import OmniError
from omni_cli.serve.errors import APIError, as_api_error, validation_error
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.middleware import RequestMiddleware
from omni_cli.serve.parsed_route import is_form
from omni_cli.serve.routes.chat import chat_routes, token_routes
from omni_cli.serve.routes.completions import completion_routes
from omni_cli.serve.routes.diffusion import image_routes, kept_video_routes, video_routes
from omni_cli.serve.routes.operations import operation_routes
from omni_cli.serve.routes.responses import response_routes
from omni_cli.serve.routes.speech import speech_routes, voice_routes
from omni_cli.serve.routes.transcriptions import transcription_routes
from omni_cli.serve.schemas.fields import integral
from omni_cli.serve.service import Service
from omni_cli.serve.video_jobs import VideoJobs

_FOLDER = Path(__file__).with_name("page")
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
# Answers of models are data: even a fault of the page would run no script of theirs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "media-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _API(FastAPI):
    """FastAPI with exact bounds and no code 422 in its OpenAPI document: invalid fields get 400, as from OpenAI."""

    def openapi(self) -> dict[str, object]:
        if self.openapi_schema is None:
            document = super().openapi()
            for operation in (operation for path in document["paths"].values() for operation in path.values()):
                operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(unused, None)
            # FastAPI has bounds as floats, and the seed's would be read as another number.
            self.openapi_schema = json.loads(json.dumps(document), parse_float=lambda number: integral(float(number)))
        return super().openapi()


def create_app(service: Service, videos: VideoJobs | None = None) -> RequestMiddleware:
    """Create the ASGI application of a server; `videos` is None for a profile that makes none."""
    api = _API(title="omni serve", version=__version__, docs_url=None, redoc_url=None)
    text_routes = (chat_routes, completion_routes, response_routes, token_routes)
    sound_routes = (speech_routes, voice_routes, transcription_routes)
    for routes in (*text_routes, *sound_routes, image_routes, operation_routes):
        api.include_router(routes(service))
    if service.settings.has_page:
        api.include_router(_page_routes())
    for video_router in (video_routes, kept_video_routes):
        api.include_router(video_router(service, videos))
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(HTTPException, _on_http_error)
    for failure in (APIError, OmniError, Exception):
        api.add_exception_handler(failure, _on_error)
    return RequestMiddleware(api, service, public_paths=frozenset(_FILES if service.settings.has_page else ()))


def _page_routes() -> APIRouter:
    """A page for people, which uses the other routes as any client does. It loads nothing from elsewhere."""
    router = APIRouter()
    for path, (name, media_type) in _FILES.items():
        response = Response((_FOLDER / name).read_bytes(), media_type=media_type, headers=_HEADERS)
        # A response is an ASGI application that sends itself.
        router.routes.append(Route(path, response, methods=["GET"], include_in_schema=False))
    return router


def _answer(request: Request, error: APIError) -> Response:
    exchange = Exchange.from_scope(request.scope)
    exchange.error, exchange.message = error.kind, error.message
    return error.response()


async def _on_invalid(request: Request, error: Any) -> Response:
    field = request.scope["route"].body_field
    fields = {} if field is None else field.field_info.annotation.model_fields
    known = [each.alias or name for name, each in fields.items()]
    return _answer(request, validation_error(error.errors(), known, error.body))


async def _on_http_error(request: Request, error: Any) -> Response:
    """Handle Starlette's own errors: no such path, no such method, a body that is not JSON."""
    match error.status_code:
        case 404:
            return _answer(request, APIError(404, f"no such path: {request.url.path}", code="unknown_url"))
        case 405:
            allowed = ", ".join(_methods(request))
            answer = _answer(request, APIError(405, f"use {allowed} for this path", code="method_not_allowed"))
            answer.headers["Allow"] = allowed
            return answer
    if is_form(request):
        return _answer(request, APIError(400, f"the body is not a valid form: {error.detail}", code="invalid_form"))
    return _answer(request, APIError(error.status_code, "the body cannot be read as JSON", code="invalid_json"))


def _methods(request: Request) -> list[str]:
    """All methods of a path; Starlette names those of its first route."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods})


async def _on_error(request: Request, error: Any) -> Response:
    return _answer(request, as_api_error(error))
