"""The replies that a route documents in `/openapi.json`: status codes and content types."""

from __future__ import annotations

from omni_cli.openai_api.replies import ErrorReply

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
