"""Routes that read their own bodies, JSON or forms, before FastAPI does, and document their replies."""

from __future__ import annotations

import asyncio
import codecs
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.responses import Response

from omni_cli.openai_api.replies import ErrorReply
from omni_cli.serve.errors import APIError
from omni_cli.serve.schemas.fields import from_json

# In one body; a chat of 1000 messages with ten parts each has 30,000.
_MAX_VALUES = 100_000
# Larger bodies are read in a thread; for smaller ones, which take 5 ms at most, that would take longer.
_SMALL_BYTES = 16 * 1024
_READERS = ThreadPoolExecutor(2, "json")
# Fields that a form may repeat: lists, and those that are ignored.
_REPEATABLE = ("image", "image[]", "control_image", "timestamp_granularities[]", "user", "safety_identifier")

# An annotation for a route's body.
MULTIPART = fastapi.Form(media_type="multipart/form-data")
Responses = dict[int | str, dict[str, object]]
_MEANINGS = {
    400: "The request is wrong; `param` names the field.",
    401: "No API key, or the wrong one.",
    403: "A page of another site sent it, or `Host` is not a name of this server.",
    404: "No such model, or the profile has no stage for this endpoint.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests in flight; retry after `Retry-After` seconds.",
    500: "The server failed on this request.",
    503: "A stage is restarting, or the server is starting or stopping; retry after `Retry-After` seconds.",
    504: "The request took longer than its time limit.",
}
_WITH_RETRY_AFTER = (429, 503)
# Every request can fail in these ways, before its route runs or in it.
ALWAYS = (403, 500)
WITH_KEY = (401, *ALWAYS)
# The schema of a stream of events is that of each, as OpenAPI tools read it.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
# What a request to run something can fail with.
RUNNING = (400, 404, 408, 413, 429, 503, 504, *WITH_KEY)


class _ParsedRoute(APIRoute):
    """Reads a large body in a thread. FastAPI would hold the event loop for seconds if its values are small."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle

        async def read_and_handle(request: Request) -> Response:
            if isinstance(field.field_info, fastapi.params.Form):
                await _check_form(request)
            elif (body := await request.body()) and _content_type(request)[0].endswith((b"/json", b"+json")):
                read = functools.partial(_read_json, body, field.validate)
                loop = asyncio.get_running_loop()
                # FastAPI takes it from here, and accepts a model as it is.
                request._json = read() if len(body) <= _SMALL_BYTES else await loop.run_in_executor(_READERS, read)
            return await handle(request)

        return read_and_handle


def parsed_routes() -> APIRouter:
    return APIRouter(route_class=_ParsedRoute)


def is_form(request: Request) -> bool:
    return _content_type(request)[0] == b"multipart/form-data"


def _content_type(request: Request) -> tuple[bytes, dict[bytes, bytes]]:
    return parse_options_header(request.headers.get("content-type"))


def _read_json(body: bytes, validate: Callable[..., tuple[object, list[Any]]]) -> object:
    """Return the validated body; raises `APIError` and `RequestValidationError`."""
    if _num_values(body) > _MAX_VALUES:
        raise APIError(400, f"the body has more than {_MAX_VALUES} values", code="too_many_values")
    try:
        document = from_json(body.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        what = "valid Unicode text" if "hex escape" in str(error) else "valid JSON"
        raise APIError(400, f"the body is not {what}: {error}", code="invalid_json") from error
    value, errors = validate(document, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors, body=document)
    return value


def _num_values(body: bytes) -> int:
    """Count values without reading them, at least those beyond the limit."""
    if _count(body) <= _MAX_VALUES:
        return 0
    # These characters may also be in text, and escaped quotes in it.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_texts = unescaped.count(b'"') // 2
    return num_texts if num_texts > 2 * _MAX_VALUES else _count(b"".join(unescaped.split(b'"')[::2]))


def _count(text: bytes) -> int:
    """Count what every value but the first comes after."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


async def _check_form(request: Request) -> None:
    """Raise `APIError` for a body that is not a form, or for a repeated field: none may be dropped silently."""
    if not is_form(request):
        message = "the body must be a form, sent with `Content-Type: multipart/form-data`"
        raise APIError(400, message, code="invalid_form")
    # Python decodes some others in quadratic time, and some to text that cannot be encoded again.
    if _content_type(request)[1].get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise APIError(400, "the form's `charset` must be utf-8", code="invalid_form")
    names = Counter(name for name, _ in (await request.form()).multi_items() if name not in _REPEATABLE)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        await request.close()
        raise APIError(400, f"field `{repeated}` is given more than once", code="invalid_form", param=repeated)


def errors(*statuses: int) -> Responses:
    """Document error replies in OpenAI's shape."""
    return {status: _error(status) for status in sorted(statuses)}


def content(description: str, *media_types: str) -> Responses:
    """Document a successful reply that is not, or not only, JSON; add it to `errors`."""
    schemas = {name: _EVENT if name == "text/event-stream" else {"type": "string"} for name in media_types}
    return {
        200: {"description": description, "content": {name: {"schema": schema} for name, schema in schemas.items()}}
    }


def _error(status: int) -> dict[str, object]:
    document: dict[str, object] = {"model": ErrorReply, "description": _MEANINGS[status]}
    if status in _WITH_RETRY_AFTER:
        document["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    if status == 401:
        document["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return document


# Of a text: an addition to `errors`.
TEXT_REPLY = content("The reply, whole or as events.", "text/event-stream")
