"""A small server whose answers are a function of their request; a fault of a kind can be planted.

Words of a chat, with log-probabilities, are drawn from a hash of the prompt, of the images and, above temperature 0, of
the seed; those of a transcript from a hash of the sound.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

WORDS = ("sea ", "sky ", "tin ", "roof ", "rain ", "long ", "boat ", "grey ")


class ChatServer:
    """Serves from a thread while its `with` block runs; `faults` are names that `_Handler` knows."""

    def __init__(self, *faults: str) -> None:
        self.faults = frozenset(faults)
        self.numbers = itertools.count(1)  # a number each, also of requests that arrive together
        self.paths: set[str] = set()
        owner = self

        class Handler(_Handler):
            server_state = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: ChatServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "words", "object": "model"}]})

    def do_POST(self) -> None:
        state = self.server_state
        self.number = next(state.numbers)
        state.paths.add(self.path)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/v1/audio/"):
            self._transcribe(content)
            return
        body = json.loads(content)
        if "dies" in state.faults and self.number > 12:
            self.close_connection = True
            self.connection.close()
            return
        for field in ("seed", "logprobs", "top_logprobs", "return_token_ids", "n"):
            if f"refuses {field}" in state.faults and field in body:
                self._send(400, {"error": {"message": f"`{field}` is not supported", "code": "unsupported"}})
                return
        content = body["messages"][0]["content"]
        if isinstance(content, list) and "refuses images" in state.faults:
            self._send(400, {"error": {"message": "this model takes no images"}})
            return
        if isinstance(content, list) and "ignores images" in state.faults:
            content = content[-1]["text"]
        words = list(_words(json.dumps(content), body, state.faults, self.number))
        if body.get("stream"):
            self._stream(words, body)
        else:
            choice = self._choice(words, body)
            self._send(200, {"choices": [choice] * int(body.get("n", 1)), "usage": self._usage(words)})

    def _transcribe(self, body: bytes) -> None:
        """Answer a body of several parts, of which the last is the sound."""
        sound = hashlib.sha256(body[body.index(b"RIFF") : body.rindex(b"\r\n--")]).hexdigest()
        words = _words(sound, {"max_tokens": 8}, self.server_state.faults, self.number)
        text = "".join(word for word, _ in words).rstrip()
        if b"verbose_json" in body and "refuses verbose_json" in self.server_state.faults:
            self._send(400, {"error": {"message": "no verbose_json", "code": "unsupported"}})
            return
        if b'name="stream"\r\n\r\ntrue' not in body or "ignores stream" in self.server_state.faults:
            self._send(200, {"text": text})
            return
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        if "loses a chunk" in self.server_state.faults:
            del pieces[1]
        events = [{"type": "transcript.text.delta", "delta": piece} for piece in pieces]
        whole = text[:-1] if "cuts the last event" in self.server_state.faults else text
        self._send_events([*events, {"type": "transcript.text.done", "text": whole}])

    def _choice(self, words: list[tuple[str, float]], body: dict[str, Any]) -> dict[str, Any]:
        text, reason = self._ended(words, body)
        content = [
            {"token": word, "logprob": logprob, "top_logprobs": [{"token": word, "logprob": logprob}]}
            for word, logprob in words
        ]
        logprobs = {"content": content} if body.get("logprobs") else None
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}

    def _ended(self, words: list[tuple[str, float]], body: dict[str, Any]) -> tuple[str, str]:
        text = "".join(word for word, _ in words)
        for stop in body.get("stop") or ():
            if stop in text:
                spare = len(stop) if "keeps stop" in self.server_state.faults else 0
                return text[: text.index(stop) + spare], "stop"
        return text, "length"

    def _usage(self, words: list[tuple[str, float]]) -> dict[str, int]:
        spare = 2 if "wrong usage" in self.server_state.faults else 0
        return {"prompt_tokens": 5, "completion_tokens": len(words) + spare, "total_tokens": 5 + len(words)}

    def _stream(self, words: list[tuple[str, float]], body: dict[str, Any]) -> None:
        text, reason = self._ended(words, body)
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        if "loses a chunk" in self.server_state.faults:
            del pieces[1]
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        if "calls a function" in self.server_state.faults:
            function = {"name": "look", "arguments": '{"at": 1}'}
            call = {"index": 0, "id": "call-1", "type": "function", "function": function}
            events = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}]
        if "declines" in self.server_state.faults:
            events = [{"choices": [{"index": 0, "delta": {"reasoning": "hm ", "refusal": "I will not."}}]}]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({"choices": [], "usage": self._usage(words)})
        self._send_events(events)

    def _send_events(self, events: list[dict[str, Any]]) -> None:
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._answer(200, data.encode(), "text/event-stream")

    def _send(self, status: int, document: dict[str, Any]) -> None:
        self._answer(status, json.dumps(document).encode(), "application/json")

    def _answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _words(content: str, body: dict[str, Any], faults: frozenset[str], number: int) -> Iterator[tuple[str, float]]:
    """Draw words with their log-probabilities, which are the same for all."""
    key = content
    if body.get("temperature") and "ignores seed" not in faults:
        key += str(body.get("seed"))
    if "neighbour" in faults and number % 7 == 0:
        key += "another"
    for position in range(int(body["max_tokens"])):
        digest = hashlib.sha256(f"{key} {position}".encode()).digest()
        yield WORDS[digest[0] % len(WORDS)], math.log(1 / len(WORDS)) - digest[1] / 1000
