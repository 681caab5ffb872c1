"""Server-sent events: one JSON document each."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar

from starlette.responses import StreamingResponse

from omni_cli.core.errors import OmniError
from omni_cli.serve.errors import APIError, as_api_error
from omni_cli.serve.exchange import AccessLog, Exchange

END_OF_STREAM = b"data: [DONE]\n\n"
T = TypeVar("T")


async def begin(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Wait for the first item, so that a request that fails before it gets a proper status; return all items."""
    try:
        first = await anext(items)
    except BaseException:
        await items.aclose()
        raise

    async def from_first() -> AsyncGenerator[T, None]:
        async with aclosing(items):
            yield first
            async for item in items:
                yield item

    return from_first()


async def event_stream(
    documents: AsyncGenerator[Mapping[str, object], None],
    exchange: Exchange,
    log: AccessLog,
    *,
    end: bytes = b"",
    failed: Callable[[APIError], Mapping[str, object]] | None = None,
) -> StreamingResponse:
    """Send these documents as they arrive; a failure midway is one of them, `{"error": ...}`.

    With `failed`, which describes a failure, they are events of their `type`. Waits for the first one, and raises what
    the request raises before it.
    """
    event = functools.partial(_event, is_named=failed is not None)
    describe = failed or APIError.body
    begun = await begin(documents)

    async def send() -> AsyncIterator[bytes]:
        try:
            async with aclosing(begun):
                async for document in begun:
                    yield event(document)
        except Exception as failure:  # noqa: BLE001 - the status is sent; a missing error would look like a normal end
            error = as_api_error(failure)
            exchange.error = error.kind
            if not isinstance(failure, OmniError | APIError):
                log.failure(exchange, failure)
            yield event(describe(error))
        if end:
            yield end

    return StreamingResponse(send(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _event(document: Mapping[str, object], *, is_named: bool) -> bytes:
    name = f"event: {document['type']}\n".encode() if is_named else b""
    return name + b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
