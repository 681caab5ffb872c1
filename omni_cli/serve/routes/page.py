"""`GET /`: a page for people, which uses the other routes as any client does. It loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

_FOLDER = Path(__file__).parents[1] / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
PAGE_PATHS = frozenset(_FILES)
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


def page_routes() -> APIRouter:
    router = APIRouter()
    for path, (name, media_type) in _FILES.items():
        response = Response((_FOLDER / name).read_bytes(), media_type=media_type, headers=_HEADERS)
        router.add_route(path, _always(response), methods=["GET"], include_in_schema=False)
    return router


def _always(response: Response) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return response

    return answer
