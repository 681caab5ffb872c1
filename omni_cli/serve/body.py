"""Receive requests' bodies with limits on their size, their time and their number, before anything parses them."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from omni_cli.serve.errors import APIError, queue_full, shutting_down
from omni_cli.serve.limits import MIB, Limits

# A client that is refused while it sends would see a broken connection instead of the answer.
_DISCARD_S = 3.0


class Disconnected(Exception):
    """The client has disconnected."""


class Bodies:
    """The bodies that are arriving, the oldest first.

    A slow body does not count as a request in flight. All together may be as large as those of all requests in flight;
    beyond that, the oldest is given up.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._max_bytes = limits.max_requests * limits.max_body_bytes
        self._num_bytes = 0
        self._arriving: dict[asyncio.Timeout, int] = {}
        self._is_stopped = False

    async def read(self, receive: Receive, headers: Headers) -> bytes:
        """Raise `APIError` for a body that is too large or too slow, `Disconnected` for a client that disconnects."""
        cap = self._limits.max_body_bytes
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > cap:
            await self.discard(receive)
            raise _too_large(cap)
        body = await self._receive(receive, cap)
        if body is None:
            await self.discard(receive)
            raise _too_large(cap)
        return body

    async def discard(self, receive: Receive) -> None:
        """Read the rest of a body without keeping it, for a moment and up to the limit of its size."""
        size = 0
        try:
            async with asyncio.timeout(_DISCARD_S) as time_limit:
                self._arriving[time_limit] = 0
                while size <= self._limits.max_body_bytes:
                    message = await _next(receive)
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return
        finally:
            self._drop(time_limit)

    def stop(self) -> None:
        """Wait for no body any longer."""
        self._is_stopped = True
        while self._arriving:
            self._give_up_oldest()

    async def _receive(self, receive: Receive, cap: int) -> bytes | None:
        """Return a whole body, None for one of more than `cap` bytes."""
        chunks: list[bytes] = []
        size = 0
        limit_s = self._limits.body_timeout_s
        latest = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(latest) as time_limit:
                self._arriving[time_limit] = 0
                while size <= cap:
                    message = await _next(receive)
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size <= cap and not message.get("more_body", False):
                        return b"".join(chunks)
                    self._hold(time_limit, len(chunks[-1]))
        except TimeoutError:
            if self._is_stopped:
                raise shutting_down() from None
            if asyncio.get_running_loop().time() < latest:
                raise queue_full("too many large bodies arrive at once") from None
            raise APIError(408, f"the body did not arrive within {limit_s:g} s") from None
        finally:
            self._drop(time_limit)
        return None

    def _hold(self, time_limit: asyncio.Timeout, num_bytes: int) -> None:
        if time_limit in self._arriving:
            self._arriving[time_limit] += num_bytes
            self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._arriving))
        self._drop(oldest)
        oldest.reschedule(0.0)

    def _drop(self, time_limit: asyncio.Timeout) -> None:
        self._num_bytes -= self._arriving.pop(time_limit, 0)


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


def _too_large(cap: int) -> APIError:
    return APIError(413, f"the body is larger than {cap / MIB:g} MiB", code="body_too_large")
