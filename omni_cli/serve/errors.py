"""Failures as HTTP responses: a status and a body in OpenAI's shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from pydantic_core import ErrorDetails
from starlette.responses import JSONResponse

from omni_cli.core.errors import DeadlineError, OmniError, StageError, UsageError
from omni_cli.core.text import suggest
from omni_cli.openai_api.replies import ErrorReply

RETRY_AFTER_S = 1
# A message may quote a request's text.
_MAX_MESSAGE_CHARS = 1000
_MAX_PARAM_CHARS = 200
_MAX_SHOWN = 60

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class APIError(Exception):
    """An error response to a request.

    `code` is for programs, `param` the field at fault. `retry_after_s` is sent as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}..."
        self.code = code
        self.param = None if param is None else param[:_MAX_PARAM_CHARS]
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """The name for logs and metrics."""
        return self.code or self.body()["error"]["type"]

    def body(self) -> ErrorReply:
        error_type = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


class StreamAborted(Exception):
    """A reply that failed after its status was sent, in a format that has no errors: its connection is closed.

    `kind` is the name for logs and metrics.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def refuse(*rules: tuple[str, object, str]) -> None:
    """Raise `APIError` (400) for the first of the rules (field, what is wrong with it, message) that is broken."""
    for param, is_broken, message in rules:
        if is_broken:
            raise APIError(400, message, code="invalid_value", param=param)


@contextlib.contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Raise failures as `APIError` with a route's own `names` of fields, by the names that they have elsewhere."""
    try:
        yield
    except (APIError, OmniError) as failure:
        error = as_api_error(failure)
        for name, own in names.items():
            error.message = error.message.replace(f"`{name}`", f"`{own}`")
            error.param = own if (error.param or "").partition("[")[0] == name else error.param
        raise error from failure


@contextlib.contextmanager
def storing(message: str) -> Iterator[None]:
    """Raise `APIError` (500) with `message` for an `OSError`."""
    try:
        yield
    except OSError as error:
        raise APIError(500, f"{message}: {error.strerror}", code="storage_failed") from error


def unavailable(message: str) -> APIError:
    """Return the error of an engine that is temporarily unavailable."""
    return APIError(503, message, code="engine_unavailable", retry_after_s=RETRY_AFTER_S)


def shutting_down() -> APIError:
    """The server takes no more requests."""
    return APIError(503, "the server is shutting down", code="shutting_down", retry_after_s=RETRY_AFTER_S)


def queue_full(message: str) -> APIError:
    """The error of a request while the server has as many as it accepts."""
    return APIError(429, f"{message}; try again", code="queue_full", retry_after_s=RETRY_AFTER_S)


def as_api_error(failure: BaseException) -> APIError:
    """Convert any failure to a response; one that is neither the engine's nor a check's is a fault of ours.

    The client's mistakes are reported in full; of a server fault only the stage is named.
    """
    match failure:
        case APIError():
            return failure
        case UsageError():
            return APIError(400, failure.in_one_line)
        case DeadlineError():
            return APIError(504, failure.message, code="deadline_exceeded")
        case StageError(request_id=None):
            return unavailable(f"stage `{failure.stage}` has stopped and is being restarted")
        case StageError():
            return APIError(500, f"stage `{failure.stage}` failed on this request", code="stage_failed")
        case OmniError():
            return APIError(500, failure.message, code="run_failed")
    return APIError(500, "internal error", code="internal_error")


def validation_error(errors: Sequence[ErrorDetails], known: Sequence[str], body: object) -> APIError:
    """Convert one of pydantic's errors about `body`; `known` are the field names for "did you mean".

    Reports the deepest one: if a value may be of several types, the others only report that it is not one of them.
    """
    # What an object of the wrong type lacks is of no interest.
    error = max(
        errors, key=lambda error: (len(error["loc"]), error["type"] == "literal_error", error["type"][-5:] != "_type")
    )
    param = _param(error["loc"], body)
    match error["type"]:
        case "json_invalid":
            return APIError(400, f"the body is not valid JSON: {error['ctx']['error']}", code="invalid_json")
        case "model_attributes_type" | "dict_type" if not param:
            return APIError(
                400,
                "the body must be a JSON object, sent with `Content-Type: application/json`",
                code="invalid_json",
            )
        case "extra_forbidden":
            name = str(error["loc"][-1])
            near = suggest(name, known)
            hint = f"; {near}" if near else ""
            return APIError(400, f"unknown field `{param}`{hint}", code="unknown_parameter", param=param)
        case "missing":
            what = f"field `{param}` is missing" if param else "the body is missing"
            return APIError(400, what, code="missing_required_parameter", param=param)
        case "unsupported_parameter":
            return APIError(400, f"`{param}` {error['msg']}", code="unsupported_parameter", param=param)
    if error["type"] == "literal_error":
        given = repr(error["input"])
        shown = f", not {given}" if len(given) < _MAX_SHOWN else ""
        message = f"`{param}` must be {error['ctx']['expected']}{shown}"
        return APIError(400, message, code="invalid_value", param=param)
    reason = error["msg"].removeprefix("Value error, ")
    return APIError(400, f"`{param}`: {reason}", code="invalid_value", param=param)


def _param(loc: Sequence[int | str], body: object) -> str | None:
    """Convert pydantic's ("body", "messages", 0, "user", "content", "str") to `messages[0].content`.

    It omits the union member that a value was taken for, which `body` does not have.
    """
    text, value = "", body
    parts = loc[1:] if loc[:1] in (("body",), ("query",)) else loc
    for number, part in enumerate(parts, 1):
        if isinstance(part, int):
            text += f"[{part}]"
            value = value[part] if isinstance(value, list) else None
        elif not text:
            text = part  # a form has fields such as `image[]`
            value = value.get(part) if isinstance(value, dict) else None
        elif isinstance(value, dict) and (part in value or (number == len(parts) and part.isidentifier())):
            text += f".{part}"
            value = value.get(part)
    return text or None
