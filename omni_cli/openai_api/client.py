"""A request to a server, and its outcome. `benchmarks/results` has the cost of the client itself (aiohttp)."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from types import TracebackType

import aiohttp
import msgspec

from omni_cli.openai_api.reading import AnswerError, Reader, ServerAnswer, error_message
from omni_cli.text import visible

_KEEP_ALIVE_S = 4.0
"""Shorter than servers keep an idle connection (uvicorn: 5 s), because one that closes during a request is an error."""

_MAX_ERROR_BYTES = 65_536
_MAX_MESSAGE = 300


@dataclass(frozen=True)
class RequestFailure:
    """Failures are counted by `kind` (`HTTP 429 queue_full`); `message` is that of this one."""

    kind: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """Times are of `time.perf_counter`: when the request was due, when it was sent, and when its answer ended.

    Exactly one of `answer` and `failure` is None.
    """

    due_s: float
    sent_s: float
    done_s: float
    answer: ServerAnswer | None = None
    failure: RequestFailure | None = None


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
                    async for chunk in response.content.iter_any():
                        reader.feed(chunk, time.perf_counter())
                    done_s = time.perf_counter()
                    reader.finish()
        except (aiohttp.ClientError, OSError, TimeoutError, AnswerError) as error:
            failure = self._failure(error)
        if failure is not None:
            return Outcome(due_s, sent_s, time.perf_counter(), failure=failure)
        return Outcome(due_s, sent_s, done_s, answer=reader.answer)

    async def get(self, path: str) -> tuple[object, dict[str, str]] | RequestFailure:
        """Return a JSON document and the answer's headers."""
        try:
            async with self._session.get(self.url + path, allow_redirects=False) as response:
                if response.status != 200:
                    return await self._refusal(response)
                document = msgspec.json.decode(await response.read())
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
                kind, self._shown(body.decode(errors="replace").strip() or response.reason or "no reason")
            )
        code = error.get("code") if isinstance(error, dict) else None
        # vLLM repeats the status in `code`.
        if isinstance(code, str) and code.isidentifier():
            kind = f"{kind} {code}"
        return RequestFailure(kind, self._shown(error_message(error)))

    def _failure(self, error: Exception) -> RequestFailure:
        message = self._shown(str(error) or type(error).__name__)
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

    def _shown(self, text: str) -> str:
        """Return the text on one line, without the key, which servers may repeat if it is wrong."""
        if self._api_key:
            text = text.replace(self._api_key, "***")
        return visible(" ".join(text.split()), _MAX_MESSAGE)
