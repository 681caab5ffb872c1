"""Middleware before the routes: ids, the key, requests in flight, bodies, and clients that disconnect."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Set
from contextlib import suppress

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from omni_cli.serve.errors import APIError, StreamAborted, as_api_error, queue_full, shutting_down
from omni_cli.serve.exchange import FINISH_REASON, PROBES, REQUEST_ID, REQUEST_TIMEOUT, SEED, Exchange
from omni_cli.serve.limits import MIB
from omni_cli.serve.service import Service
from omni_cli.serve.sites import SiteRule

# Putting a busy server to sleep ends its requests.
_NEVER_FULL = frozenset({"/sleep", "/wake_up"})
# Routes end their requests at the deadline; this limit is for clients that do not read their response.
_OVERRUN_S = 5.0
# A client that is refused while it sends would see a broken connection instead of the response.
_DISCARD_S = 3.0


class Disconnected(Exception):
    """The client has disconnected."""


class RequestMiddleware:
    """The whole server as an ASGI application.

    Every body has been read when a route runs, and a route is cancelled as soon as its client disconnects.
    """

    def __init__(self, routes: Starlette, service: Service, public_paths: Set[str] = frozenset()) -> None:
        """`public_paths` are files, which need no key and to which other sites may link."""
        settings = service.settings
        self._public_paths = public_paths
        self._sites = SiteRule(settings.is_loopback, settings.api_key is not None, settings.allowed_origins)
        # Around all answers, errors included; it also answers the browser's own requests, which have no key.
        self._cors = CORSMiddleware(
            self._handle,
            settings.allowed_origins,
            allow_methods=("*",),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=(REQUEST_ID, SEED, FINISH_REASON, "Retry-After"),
        )
        self._routes = routes
        # A label of metrics is a time series that is kept forever: clients must not create new ones.
        self._paths = [(route.path_regex, route.path_format) for route in routes.routes if isinstance(route, Route)]
        self._service = service
        self._limits = service.limits
        self._metrics = service.metrics
        self._log = service.log
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._in_flight = 0
        self._arriving: set[asyncio.Timeout] = set()

    def stop_reading(self) -> None:
        """Wait for no body any longer: while the service drains, those that arrive are refused."""
        for time_limit in self._arriving:
            time_limit.reschedule(0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"cannot serve {scope['type']}")
        route = next((path for pattern, path in self._paths if pattern.match(scope["path"])), "other")
        exchange = Exchange.begin(scope, self._limits.timeout_s, route)

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                MutableHeaders(scope=message).update({REQUEST_ID: exchange.request_id, **exchange.headers})
            elif message["type"] == "http.response.body":
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)
            exchange.is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        handle = self._cors if self._sites.allows(Headers(scope=scope).get("origin")) else self._handle
        try:
            await handle(scope, receive, reply)
        finally:
            self._metrics.on_end(exchange)
            self._log.request(exchange)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.from_scope(scope)
        try:
            await self._answer(scope, receive, send, exchange)
        except Disconnected:
            exchange.error = "client_disconnected"
        except StreamAborted as failure:
            exchange.error = failure.kind
        except APIError as error:
            exchange.error, exchange.message = error.kind, error.message
            await error.response()(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - our own failure must not end the server
            exchange.error = "internal_error"
            self._log.failure(exchange, error)
            if exchange.status is None:
                await as_api_error(error).response()(scope, receive, send)
        except asyncio.CancelledError:
            # The time to drain after a stop signal is over, and the task of this request ends.
            exchange.error = "shutting_down"
            if exchange.status is None:
                await shutting_down().response()(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        headers = Headers(scope=scope)
        has_body = scope["method"] == "POST"
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if has_body:
                await _discard(receive, self._limits.max_body_bytes)
            raise refusal
        if scope["method"] == "GET":
            await self._run(scope, replay(b""), receive, send, exchange)
            return
        if not has_body:
            await self._routes(scope, receive, send)
            return
        exchange.shorten(headers.get(REQUEST_TIMEOUT))
        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        try:
            body = replay(await self._read_body(receive, headers))
            if self._service.is_draining:
                raise shutting_down()
            await self._run(scope, body, receive, send, exchange)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.set(self._in_flight)

    async def _read_body(self, receive: Receive, headers: Headers) -> bytes:
        """Raise `APIError` for a body that is too large or too slow, `Disconnected` for a client that disconnects."""
        cap, limit_s = self._limits.max_body_bytes, self._limits.body_timeout_s
        announced = headers.get("content-length", "0")
        is_too_large = announced.isdecimal() and int(announced) > cap
        body = bytearray()
        try:
            async with asyncio.timeout(limit_s) as time_limit:
                self._arriving.add(time_limit)
                chunks = _chunks(receive)
                while not is_too_large and (chunk := await anext(chunks, None)) is not None:
                    body += chunk
                    is_too_large = len(body) > cap
        except TimeoutError:
            if self._service.is_draining:
                raise shutting_down() from None
            raise APIError(408, f"the body did not arrive within {limit_s:g} s") from None
        finally:
            self._arriving.discard(time_limit)
        if is_too_large:
            await _discard(receive, cap)
            raise APIError(413, f"the body is larger than {cap / MIB:g} MiB", code="body_too_large")
        return bytes(body)

    def _refusal(self, scope: Scope, headers: Headers) -> APIError | None:
        """Return the error of a request whose body is not even read."""
        if scope["path"] in self._public_paths:
            return None
        foreign = self._sites.refusal(headers)
        if foreign is not None:
            return foreign
        if self._key is not None and scope["path"] not in PROBES:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(key.strip().encode(), self._key):
                message = "wrong API key" if key else "no API key; send `Authorization: Bearer KEY`"
                return APIError(401, message, code="invalid_api_key")
        if scope["method"] != "POST":
            return None
        if self._service.is_draining:
            return shutting_down()
        if scope["path"] not in _NEVER_FULL and self._in_flight >= self._limits.max_requests:
            return queue_full(f"{self._in_flight} requests are running or waiting, the maximum of this server")
        return None

    async def _run(self, scope: Scope, body: Receive, receive: Receive, send: Send, exchange: Exchange) -> None:
        routes = asyncio.ensure_future(self._routes(scope, body, send))
        gone = asyncio.create_task(_until_hung_up(receive, exchange))
        try:
            done, deadline_s = set[asyncio.Future[None]](), -math.inf
            while not done and deadline_s < exchange.deadline_s:  # a route may lengthen it
                deadline_s = exchange.deadline_s
                overrun_s = deadline_s - exchange.began_s - exchange.elapsed_s() + _OVERRUN_S
                # A download takes as long as its client.
                limit_s = None if scope["method"] == "GET" else overrun_s
                done, _ = await asyncio.wait({routes, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise Disconnected
            if routes.done():
                routes.result()
            else:
                exchange.error = "client_stalled"
        finally:
            for task in (routes, gone):
                task.cancel()
            await asyncio.gather(routes, gone, return_exceptions=True)  # failures have been reported by then


async def _discard(receive: Receive, cap: int) -> None:
    """Read the rest of a body without keeping it, for a moment and up to the limit of its size."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > cap:
                    return


async def _chunks(receive: Receive) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body. Raises `Disconnected`."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more = message.get("more_body", False)
        yield message.get("body", b"")


def replay(body: bytes) -> Receive:
    """A `receive` that returns an already read body; further calls wait until cancelled."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    return receive


async def _until_hung_up(receive: Receive, exchange: Exchange) -> None:
    """Wait for a client that disconnects before its answer has ended, else until cancelled."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if exchange.is_answered:
        # Servers say so after every answer, and the route may still have files of its form to close.
        await asyncio.get_running_loop().create_future()
