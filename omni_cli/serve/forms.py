"""Bodies that are `multipart/form-data`, for requests with files."""

from __future__ import annotations

from collections import Counter

from fastapi import Depends, Form, Request

from omni_cli.serve.errors import APIError

# Lists, and fields that are ignored anyway.
_REPEATABLE = ("image", "image[]", "user", "safety_identifier")


async def _check(request: Request) -> None:
    if not is_form(request):
        message = "the body must be a form, sent with `Content-Type: multipart/form-data`"
        raise APIError(400, message, code="invalid_form")
    names = Counter(name for name, _ in (await request.form()).multi_items() if name not in _REPEATABLE)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise APIError(400, f"field `{repeated}` is given more than once", code="invalid_form", param=repeated)


def is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/form-data")


# An annotation for a route's body, and what the route depends on: no field may be dropped silently.
MULTIPART = Form(media_type="multipart/form-data")
CHECKED_FORM = Depends(_check)
