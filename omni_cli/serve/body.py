"""Read a request's body with limits on its size and time, before anything parses it."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from omni_cli.serve.errors import APIError
from omni_cli.serve.limits import MIB, Limits

# A client that is refused while it sends would see a broken connection instead of the answer.
_DISCARD_S = 5.0


class Disconnected(Exception):
    """The client has disconnected."""


async def read_body(receive: Receive, headers: Headers, limits: Limits) -> bytes:
    """Raise `APIError` for a body that is too large or too slow, `Disconnected` for a client that disconnects."""
    cap = limits.max_body_bytes
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > cap:
        await discard_body(receive, cap)
        raise _too_large(cap)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while True:
                message = await _next(receive)
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > cap:
                    break
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise APIError(408, f"the body did not arrive within {limits.body_timeout_s:g} s") from None
    chunks.clear()
    await discard_body(receive, cap)
    raise _too_large(cap)


async def discard_body(receive: Receive, max_bytes: int) -> None:
    """Read the rest of a body without keeping it, for a moment and up to `max_bytes`."""
    size = 0
    try:
        async with asyncio.timeout(_DISCARD_S):
            while size <= max_bytes:
                message = await _next(receive)
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


def _too_large(cap: int) -> APIError:
    return APIError(413, f"the body is larger than {cap / MIB:g} MiB", code="body_too_large")
