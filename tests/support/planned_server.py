"""A small HTTP server that answers chats in a way that is known: after so long, with so many tokens, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Plan:
    """The answer to one chat. `status` other than 200 is an error; `cut_after` tokens later the connection ends.

    `repeated_s` is `first_s` of a prompt that was sent before; a chunk has `per_chunk` tokens, sent when the last one
    is ready; with `counts_chunks`, its usage tells the tokens so far.

    `sound` are the pieces of another answer, of `content_type`, sent every `gap_s`.
    """

    first_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 4
    status: int = 200
    error: dict[str, Any] | None = None
    with_usage: bool = True
    cut_after: int | None = None
    text: str = "word "
    repeated_s: float | None = None
    per_chunk: int = 1
    counts_chunks: bool = False
    prompt_tokens: int = 7
    delta: dict[str, Any] | None = None  # instead of the text
    sound: tuple[bytes, ...] = ()
    content_type: str = "text/event-stream"


class PlannedServer:
    """Serves from a thread while its `with` block runs. `plan(n)` is for the n-th chat, counted from 0."""

    def __init__(
        self, plan: Callable[[int], Plan], *, models: Any = None, owned_by: str = "test", parallel: int = 4096
    ) -> None:
        self._plan = plan
        self._places = threading.Semaphore(parallel)
        self._seen: set[str] = set()
        self._models = [{"id": "planned", "object": "model", "owned_by": owned_by}] if models is None else models
        self._lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Small pieces are on their way at once, as from a real server.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                owner._models_to(self)

            def do_POST(self) -> None:
                owner._chat_to(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PlannedServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _models_to(self, handler: BaseHTTPRequestHandler) -> None:
        _send(handler, 200, {"object": "list", "data": self._models})

    def _chat_to(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            plan = self._plan(len(self.bodies))
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            prompt = json.dumps([body.get("messages"), body.get("cache_salt")])
            is_repeated = prompt in self._seen
            self._seen.add(prompt)
        with self._places:
            self._answer(handler, plan, plan.repeated_s if is_repeated else None)

    @staticmethod
    def _answer(handler: BaseHTTPRequestHandler, plan: Plan, repeated_s: float | None) -> None:
        time.sleep(plan.first_s if repeated_s is None else repeated_s)
        if plan.status != 200:
            _send(handler, plan.status, {"error": plan.error or {"message": "no", "code": "refused"}})
            return
        handler.send_response(200)
        handler.send_header("content-type", plan.content_type)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for piece in plan.sound:
            _chunk(handler, piece)
            time.sleep(plan.gap_s)
        if plan.sound:
            _chunk(handler, b"")
            return
        for number in range(0, plan.tokens, plan.per_chunk):
            size = min(plan.per_chunk, plan.tokens - number)
            time.sleep(plan.gap_s * (size if number else size - 1))
            if number == plan.cut_after:
                handler.close_connection = True
                handler.connection.close()
                return
            said = plan.delta or {"content": plan.text * size}
            delta = {"choices": [{"index": 0, "delta": said, "finish_reason": None}]}
            _event(handler, {**delta, **(_usage(plan, number + size) if plan.counts_chunks else {})})
        _event(handler, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if plan.with_usage:
            _event(handler, {"choices": [], **_usage(plan, plan.tokens)})
        _chunk(handler, b"data: [DONE]\n\n")
        _chunk(handler, b"")


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: they are part of the tests."""


def _usage(plan: Plan, tokens: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": plan.prompt_tokens, "completion_tokens": tokens}}


def _event(handler: BaseHTTPRequestHandler, document: dict[str, Any]) -> None:
    _chunk(handler, b"data: " + json.dumps(document).encode() + b"\n\n")


def _chunk(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


def _send(handler: BaseHTTPRequestHandler, status: int, document: dict[str, Any]) -> None:
    content = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
