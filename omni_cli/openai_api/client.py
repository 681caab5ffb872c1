"""A client of servers with OpenAI's API: a request and its outcome, and a server's description of itself.

`benchmarks/results` has the cost of the client (aiohttp).
"""

from __future__ import annotations

import asyncio
import errno
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from omni_cli.core.errors import AnswerError, OmniError, UsageError
from omni_cli.core.text import visible
from omni_cli.openai_api.reading import Reader, ServerAnswer, error_message
from omni_cli.openai_api.routes import Route

_KEEP_ALIVE_S = 4.0
"""Shorter than servers keep an idle connection (uvicorn: 5 s), because one that closes during a request is an error."""

_MAX_ERROR_BYTES = 65_536
_MAX_MESSAGE = 300
_PROBE_TIMEOUT_S = 10.0
_PROBE_PAUSE_S = 0.5
_HEADERS = ("server", "x-powered-by")
_ADDRESS = "pass the address of an OpenAI-compatible server, without the endpoint's path"


@dataclass(frozen=True)
class RequestFailure:
    """Failures are counted by `kind` (`HTTP 429 queue_full`); `message` is that of this one."""

    kind: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """Times are of `time.perf_counter`: when the request was due, when it was sent, and when its connection was free.

    Exactly one of `answer` and `failure` is None. `asked` are the lengths that the request asked for.
    """

    due_s: float
    sent_s: float
    done_s: float
    answer: ServerAnswer | None = None
    failure: RequestFailure | None = None
    asked: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def ended_s(self) -> float:
        """The time of the last output; what may follow it in a stream is bookkeeping."""
        last_at = None if self.answer is None else self.answer.last_at
        return self.done_s if last_at is None else last_at


class Client:
    """Connections to one server; an asynchronous context manager. `api_key` is sent in a header only."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.url = url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._entered: aiohttp.ClientSession | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._entered is not None, "used outside of its context"
        return self._entered

    async def __aenter__(self) -> Client:
        headers = {"Accept-Encoding": "identity"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        self._entered = aiohttp.ClientSession(
            # No limit here: a request that waits for a connection would be sent late.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers=headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, path: str, body: bytes | aiohttp.FormData, reader: Reader, due_s: float) -> Outcome:
        """Send JSON or a form that is due now and read its answer to the end. Raises for no failure of it."""
        headers = {"Content-Type": "application/json"} if isinstance(body, bytes) else None
        sent_s = time.perf_counter()
        failure = None
        try:
            # Following a redirect would send the key elsewhere and measure two servers.
            async with self._session.post(
                self.url + path, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    failure = await self._refusal(response)
                else:
                    reader.answer.content_type = response.headers.get("Content-Type", "")
                    async for chunk in response.content.iter_any():
                        reader.feed(chunk, time.perf_counter())
                    done_s = time.perf_counter()
                    reader.finish()
        except (aiohttp.ClientError, OSError, TimeoutError, AnswerError) as error:
            failure = self._failure(error)
        if failure is not None:
            return Outcome(due_s, sent_s, time.perf_counter(), failure=failure)
        return Outcome(due_s, sent_s, done_s, answer=reader.answer)

    async def get(
        self, path: str, decode: Callable[[bytes], object] = msgspec.json.decode
    ) -> tuple[object, dict[str, str]] | RequestFailure:
        """Return a document, by default of JSON, and the answer's headers."""
        try:
            async with self._session.get(self.url + path, allow_redirects=False) as response:
                if response.status != 200:
                    return await self._refusal(response)
                document = decode(await response.read())
                return document, {name.lower(): value for name, value in response.headers.items()}
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            return self._failure(error)

    async def _refusal(self, response: aiohttp.ClientResponse) -> RequestFailure:
        """Describe an answer with a status other than 200: OpenAI's error, or the beginning of the body."""
        body = b""
        while len(body) < _MAX_ERROR_BYTES and (chunk := await response.content.read(_MAX_ERROR_BYTES)):
            body += chunk
        kind = f"HTTP {response.status}"
        try:
            error = msgspec.json.decode(body)["error"]
        except (msgspec.DecodeError, KeyError, TypeError):
            return RequestFailure(
                kind, self._make_safe(body.decode(errors="replace").strip() or response.reason or "no reason")
            )
        code = error.get("code") if isinstance(error, dict) else None
        # vLLM repeats the status in `code`.
        if isinstance(code, str) and code.isidentifier():
            kind = f"{kind} {code}"
        return RequestFailure(kind, self._make_safe(error_message(error)))

    def _failure(self, error: Exception) -> RequestFailure:
        message = self._make_safe(str(error) or type(error).__name__)
        match error:
            case AnswerError():
                return RequestFailure(error.kind, message)
            case TimeoutError():
                return RequestFailure("timeout", f"no complete answer within {self._timeout_s:g} s")
            case aiohttp.ClientConnectorDNSError():
                return RequestFailure("no such host", message)
            case OSError(errno=errno.ECONNREFUSED):
                return RequestFailure("connection refused", message)
            case OSError(errno=errno.EMFILE | errno.ENFILE):
                return RequestFailure("too many open files in the client", message)
            case aiohttp.ClientConnectorError():
                return RequestFailure("no connection", message)
            case msgspec.DecodeError():
                return RequestFailure("invalid answer", message)
        return RequestFailure("connection lost", message)

    def _make_safe(self, text: str) -> str:
        """Return the text on one line, without the key, which servers may repeat if it is wrong."""
        if self._api_key:
            text = text.replace(self._api_key, "***")
        return visible(" ".join(text.split()), _MAX_MESSAGE)


@dataclass(frozen=True)
class Target:
    """`model` is the name that requests carry, `description` the server's self-description."""

    url: str
    model: str
    description: dict[str, object] = field(default_factory=dict)

    @property
    def salts_caches(self) -> bool:
        """True if the server runs on vLLM, which has a prefix cache and accepts `cache_salt`."""
        return self.description.get("owned_by") in ("vllm", "omni-cli")

    @property
    def counts_chunks(self) -> bool:
        """True if the server sends the `usage` so far with every chunk when it is asked (`continuous_usage_stats`)."""
        return self.description.get("owned_by") in ("vllm", "omni-cli", "sglang")


def parse_url(text: str) -> str:
    """Return a server's address without a trailing `/v1`; without a scheme it is one of http. Raises `UsageError`."""
    shown = visible(text, 120)
    if re.match(r"(localhost\b|[\w-]+(\.[\w-]+)+|[\w.-]+:\d|\[)", text) and "://" not in text:
        text = f"http://{text}"
    hint = "for example http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"`{shown}` is not an address: {error}", hint=hint) from error
    if parts.username is not None or parts.password is not None:
        # Not repeated in the message, which may end up in logs.
        raise UsageError(
            "the address of a server must not contain a password", hint="set OPENAI_API_KEY, or pass `--api-key`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"`{shown}` is not the address of a server", hint=hint)
    if parts.query or parts.fragment:
        raise UsageError(f"`{shown}` has a query or a fragment", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def wait_for_servers(urls: Sequence[str], api_key: str | None, wait_s: float) -> None:
    """Wait until all servers answer and say that they are ready, at most `wait_s` seconds. Raises `OmniError`."""
    asyncio.run(_wait_for_all(urls, api_key, time.monotonic() + wait_s))


async def _wait_for_all(urls: Sequence[str], api_key: str | None, until_s: float) -> None:
    for url in dict.fromkeys(urls):
        async with Client(url, api_key=api_key, timeout_s=_PROBE_TIMEOUT_S) as client:
            while (failure := await _not_ready(client)) is not None:
                if time.monotonic() >= until_s:
                    raise _unusable(url, failure, "longer than `--wait`: is it still starting?", Route.READY)
                await asyncio.sleep(_PROBE_PAUSE_S)


async def _not_ready(client: Client) -> RequestFailure | None:
    """Return the reason why a server that starts takes no requests yet; other failures are reported later."""
    # Servers without this route listen once they are ready.
    answer = await client.get(Route.READY)
    if isinstance(answer, RequestFailure) and answer.kind.startswith(
        ("connection", "no connection", "timeout", "HTTP 50")
    ):
        return answer
    return None


def find_targets(urls: Sequence[str], model: str | None, api_key: str | None) -> tuple[Target, ...]:
    """Ask every server for its models; without `model`, its first one is measured. Raises `OmniError`."""
    return asyncio.run(_find_all(urls, model, api_key))


async def _find_all(urls: Sequence[str], model: str | None, api_key: str | None) -> tuple[Target, ...]:
    targets: dict[str, Target] = {}
    for url in dict.fromkeys(urls):
        async with Client(url, api_key=api_key, timeout_s=_PROBE_TIMEOUT_S) as client:
            targets[url] = await _find(client, model)
    return tuple(targets[url] for url in urls)


async def describe_model(client: Client, model: str) -> dict[str, Any]:
    """Return what a server tells about one of its models; empty if that is nothing."""
    answer = await client.get(Route.MODELS)
    document = None if isinstance(answer, RequestFailure) else answer[0]
    models = document.get("data") if isinstance(document, dict) else None
    found = (item for item in models or () if isinstance(item, dict) and item.get("id") == model)
    return next(found, {})


async def _find(client: Client, model: str | None) -> Target:
    answer = await client.get(Route.MODELS)
    if isinstance(answer, RequestFailure):
        if model is not None and answer.kind.startswith(("HTTP 404", "HTTP 5")):
            return Target(client.url, model)
        raise _unusable(client.url, answer)
    document, headers = answer
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list) or not all(isinstance(item, dict) and item.get("id") for item in models):
        raise _foreign(client.url)
    if not models and model is None:
        raise OmniError(f"`{client.url}` has no model", hint="name it with `--model`")
    name = str(models[0]["id"]) if model is None else model
    description: dict[str, object] = next((item for item in models if item["id"] == name), {})
    kept = {key: value for key, value in description.items() if isinstance(value, str | int | float | bool | list)}
    # The start time of a server differs from run to run.
    for key in ("created", "object", "random_weights"):
        kept.pop(key, None)
    return Target(client.url, name, {**kept, **{key: headers[key] for key in _HEADERS if key in headers}})


def _foreign(url: str) -> OmniError:
    return OmniError(f"`{url}` does not answer GET /v1/models as OpenAI's API does", hint=_ADDRESS)


def _unusable(url: str, failure: RequestFailure, advice: str | None = None, route: Route = Route.MODELS) -> OmniError:
    if failure.kind == "invalid answer":
        return _foreign(url)
    if not failure.kind.startswith("HTTP"):
        port = "" if urlsplit(url).port else "add its port, as in `http://HOST:8000`, or "
        hint = advice or f"{port}start the server; `--wait SECONDS` waits for it"
        detail = "" if failure.kind in ("connection refused", "no such host") else f" ({failure.message})"
        return OmniError(f"cannot reach `{url}`: {failure.kind}{detail}", hint=hint)
    if failure.kind.startswith(("HTTP 401", "HTTP 403")):
        advice = "set OPENAI_API_KEY, or pass `--api-key`"
    elif failure.kind.startswith("HTTP 404"):
        advice = _ADDRESS
    return OmniError(f"`{url}` rejects GET {route}: {failure.kind}: {failure.message}", hint=advice)
