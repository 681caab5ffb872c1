"""Thousands of requests from many concurrent clients, some of which disconnect and some of which send garbage.

Every answer must equal that of the same request sent alone before. At the end nothing may have grown: memory is
compared between the first 200 requests and the last, and so are processes, threads and open files. Exit code 1 if
something is wrong.

    python benchmarks/serve_soak.py --requests 2000 --clients 32
    python benchmarks/serve_soak.py --requests 6000 --clients 200 --kinds call,schema
    python benchmarks/serve_soak.py --requests 1000 --clients 4 --kinds talk --hang-ups 1
    python benchmarks/serve_soak.py --requests 1000 --clients 4 --kinds transcription --whisper FOLDER --hang-ups 1
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from serve_common import CHAT, IMAGES, SPEECH, TRANSCRIPTIONS, Holdings, Server, chat, content_type, form, post

from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.media.audio import read_speech

GARBAGE_SHARE = 0.05
FIRST = 200
MAX_GROWTH = 0.05
# Short answers, because many requests reveal more than long ones. Small KV caches, because a cache becomes resident
# memory as its blocks are first used, and these are all used after the first requests.
OMNI = (
    *("--profile", "tiny-omni", "--max-requests", "256"),
    *("--set", "thinker.sampling.max_tokens=12", "--set", "talker.sampling.max_tokens=24"),
    *("--set", "talker.sampling.min_tokens=12"),  # with random weights some texts give no speech
    *("--set", "thinker.kv_cache_memory_bytes=4194304", "--set", "talker.kv_cache_memory_bytes=4194304"),
)
# oneDNN keeps compiled kernels of up to 1,024 shapes of matrices: a batch of another size adds new ones for a long
# time. That is not a leak, but it would hide one.
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}
IMAGE = ("--profile", "tiny-image", "--max-requests", "128")
VARIANTS = 8


@dataclass(frozen=True)
class Kind:
    """A kind of request: `make(number)` gives one of several with different answers, `read` the answer's core."""

    name: str
    server: str
    path: str
    make: Callable[[int], dict[str, Any] | bytes]
    read: Callable[[bytes], Any]
    weight: float


def _spoken(number: int) -> dict[str, Any]:
    return chat(f"Tell me of {number}.", seed=number, modalities=["text", "audio"], audio={"format": "pcm16"})


def _read_chat(body: bytes) -> Any:
    message = json.loads(body)["choices"][0]["message"]
    return message["content"], (message.get("audio") or {}).get("data")


def _read_stream(body: bytes) -> Any:
    lines = body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], body[-200:]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    return text, chunks[-1]["choices"][0]["finish_reason"]


_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9999},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": _SCHEMA}}


def _bound(number: int, **fields: Any) -> dict[str, Any]:
    return chat(f"Weather {number}?", seed=number, temperature=1.2, stream=True, max_tokens=120, **fields)


def _call(number: int) -> dict[str, Any]:
    return _bound(number, tools=[_TOOL], tool_choice="required", parallel_tool_calls=False)


def _read_call(body: bytes) -> Any:
    chunks = [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n")[:-2]]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    arguments, reason = (
        "".join(call["function"]["arguments"] for call in calls),
        chunks[-1]["choices"][0]["finish_reason"],
    )
    assert reason == "length" or set(json.loads(arguments)) == {"city", "days"}, arguments
    return arguments, reason


def _schema(number: int) -> dict[str, Any]:
    return _bound(number, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}})


def _talk(number: int) -> dict[str, Any]:
    return {"input": f"Number {number}.", "voice": "Ethan", "seed": number, "stream_format": "audio"}


def _transcription(number: int) -> bytes:
    samples, rate = read_speech()[number % 2]
    return form(encode_wav(samples[1000 * number :], rate), language="en", response_format="verbose_json")


def _read_images(body: bytes) -> Any:
    return [item["b64_json"] for item in json.loads(body)["data"]]


KINDS = (
    Kind("chat", "omni", CHAT, lambda n: chat(f"What is {n}?", seed=n, temperature=0.9), _read_chat, 4),
    Kind("stream", "omni", CHAT, lambda n: chat(f"Why is {n}?", seed=n, stream=True), _read_stream, 3),
    Kind("spoken", "omni", CHAT, _spoken, _read_chat, 1),
    Kind("speech", "omni", SPEECH, lambda n: {"input": f"Number {n}.", "voice": "Ethan"}, lambda body: body, 1),
    Kind("talk", "omni", SPEECH, _talk, lambda body: body, 1),
    Kind("transcription", "whisper", TRANSCRIPTIONS, _transcription, lambda body: body, 1),
    Kind("call", "omni", CHAT, _call, _read_call, 1),
    Kind("schema", "omni", CHAT, _schema, _read_stream, 1),
    Kind("image", "image", IMAGES, lambda n: {"prompt": f"a cube {n}", "seed": n}, _read_images, 3),
    Kind(
        "images", "image", IMAGES, lambda n: {"prompt": "a ball", "seed": n, "n": 2, "size": "48x64"}, _read_images, 1
    ),
)
GARBAGE: tuple[tuple[str, str, bytes, int], ...] = (
    ("omni", CHAT, b"", 400),
    ("omni", CHAT, b"{", 400),
    ("omni", CHAT, b"\x00\xff" * 500, 400),
    ("omni", CHAT, b"[" * 50_000, 400),
    ("omni", CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    ("omni", CHAT, json.dumps(chat("x", max_tokens=-1)).encode(), 400),
    ("omni", CHAT, json.dumps(chat("word " * 3000)).encode(), 400),
    ("omni", CHAT, json.dumps(chat("x", model="gpt-4")).encode(), 404),
    ("omni", SPEECH, b'{"input": "x", "voice": "nobody"}', 400),
    ("omni", IMAGES, b'{"prompt": "x"}', 404),
    ("omni", "/v1/nothing", b"{}", 404),
    ("image", IMAGES, b'{"prompt": "x", "size": "17x17"}', 400),
    ("image", IMAGES, b'{"prompt": "x", "n": 1000}', 400),
    ("image", CHAT, json.dumps(chat("x")).encode(), 404),
)


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, problem: str | None = None) -> None:
        with self.lock:
            self.counts[what] += 1
            if problem is not None:
                self.wrong.append(f"{what}: {problem}")


class Soak:
    def __init__(self, servers: dict[str, Server], kinds: Sequence[Kind], *, seed: int, hang_ups: float) -> None:
        self.hang_ups = hang_ups
        self.servers = servers
        self.kinds = kinds
        self.garbage = [each for each in GARBAGE if each[0] in servers]
        self.random = random.Random(seed)
        self.expected: dict[tuple[str, int], str] = {}
        self.tally = Tally()

    def learn(self) -> None:
        """Record the answer of each request sent alone; answers must differ, or swapped ones would go unnoticed."""
        for kind in self.kinds:
            for number in range(VARIANTS):
                status, body = self.servers[kind.server].post(kind.path, kind.make(number))
                if status != 200:
                    raise SystemExit(f"{kind.name} alone: {status} {body[:300]!r}")
                self.expected[kind.name, number] = digest(kind.read(body))
            if len({self.expected[kind.name, number] for number in range(VARIANTS)}) < VARIANTS:
                raise SystemExit(f"{kind.name}: some answers are the same")

    def run(self, count: int, clients: int) -> None:
        """Send `count` requests from `clients` threads and wait until none is in flight."""
        jobs = [self._job() for _ in range(count)]
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    if not jobs:
                        return
                    job = jobs.pop()
                job()

        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, server in self.servers.items():
            deadline = time.monotonic() + 5
            while server.metric("omni_requests_in_flight"):
                if time.monotonic() > deadline:
                    self.tally.add(name, "requests are still in flight after all clients have disconnected")
                    break
                time.sleep(0.05)

    def _job(self) -> Callable[[], None]:
        draw = self.random.random()
        if draw < GARBAGE_SHARE * (self.hang_ups < 1):
            garbage = self.random.choice(self.garbage)
            return lambda: self._send_garbage(*garbage)
        kind = self.random.choices(self.kinds, [kind.weight for kind in self.kinds])[0]
        number = self.random.randrange(VARIANTS)
        if draw < GARBAGE_SHARE + self.hang_ups:
            after_s = self.random.uniform(0, 0.5)
            return lambda: self._hang_up(kind, number, after_s)
        return lambda: self._ask(kind, number)

    def _ask(self, kind: Kind, number: int) -> None:
        try:
            status, body = post(self.servers[kind.server].connect(), kind.path, kind.make(number))
        except OSError as error:
            self.tally.add(kind.name, f"lost: {error!r}")
            return
        if status != 200:
            self.tally.add(kind.name, f"status {status}: {body[:200]!r}")
        elif digest(kind.read(body)) != self.expected[kind.name, number]:
            found = digest(kind.read(body))
            other = next((key for key, value in self.expected.items() if value == found), None)
            self.tally.add(kind.name, f"not the answer of {number}" + (f" but that of {other}" if other else ""))
        else:
            self.tally.add(kind.name)

    def _hang_up(self, kind: Kind, number: int, after_s: float) -> None:
        ready = self.servers[kind.server].ready
        made = kind.make(number)
        content = made if isinstance(made, bytes) else json.dumps(made).encode()
        head = f"POST {kind.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type(content)}\r\n"
        with socket.create_connection((ready["host"], ready["port"])) as connection:
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            time.sleep(after_s)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tally.add("hang-up")

    def _send_garbage(self, server: str, path: str, body: bytes, expected: int) -> None:
        try:
            status, answer = post(self.servers[server].connect(), path, body)
            shape = set(json.loads(answer)["error"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.tally.add("garbage", f"{path} {body[:60]!r}: {error!r}")
            return
        wrong = status != expected or shape != {"message", "type", "param", "code"}
        self.tally.add("garbage", f"{path} {body[:60]!r}: {status} {answer[:200]!r}" if wrong else None)


def digest(value: Any) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.b85encode(hashlib.sha256(content).digest()).decode()


def growth_problems(name: str, before: Holdings, after: Holdings) -> list[str]:
    """Resources that have grown between two quiet moments."""
    growth = after.memory_bytes / before.memory_bytes - 1
    problems = [f"{name}: memory grew by {growth:.1%}"] if growth > MAX_GROWTH else []
    for what in ("processes", "threads", "files"):
        was, now = getattr(before, what), getattr(after, what)
        # Thread pools fill up as they are used, once.
        if now > was + (8 if what == "threads" else 0):
            problems.append(f"{name}: {now} {what}, {was} before")
    return problems


def show(name: str, when: str, held: Holdings) -> None:
    sys.stdout.write(
        f"{name:6} {when:12} {held.memory_bytes / 2**20:8.1f} MiB   {held.processes} processes   "
        f"{held.threads} threads   {held.files} files   /dev/shm {held.shared_bytes / 2**20:.1f} MiB   each "
        f"{' '.join(f'{size / 2**20:.0f}' for size in held.each_bytes)} MiB\n"
    )
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--first", type=int, default=FIRST, help="requests before the first look at the resources")
    parser.add_argument("--hang-ups", type=float, default=0.10, help="share of the requests whose client disconnects")
    parser.add_argument("--whisper", help="folder of a Whisper checkpoint, for the kind `transcription`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(kind.name for kind in KINDS), help="kinds of requests, with commas")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if kind.name in options.kinds.split(",")]
    kinds = [kind for kind in kinds if kind.server != "whisper" or options.whisper]
    first = min(options.first, options.requests // 2)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(*arguments, environment=ENVIRONMENT))
            for name, arguments in (("omni", OMNI), ("image", IMAGE), ("whisper", ("--model", str(options.whisper))))
            if any(kind.server == name for kind in kinds)
        }
        soak = Soak(servers, kinds, seed=options.seed, hang_ups=options.hang_ups)
        soak.learn()
        for name, server in servers.items():
            show(name, "at the start", server.holdings())
        began = time.monotonic()
        soak.run(first, options.clients)
        before = {name: server.holdings() for name, server in servers.items()}
        soak.run(options.requests - first, options.clients)
        seconds = time.monotonic() - began
        problems = list(soak.tally.wrong)
        for name, server in servers.items():
            after = server.holdings()
            show(name, f"after {first}", before[name])
            show(name, f"after {options.requests}", after)
            problems += growth_problems(name, before[name], after)
            sys.stdout.write(f"{name:6} errors {server.metric('omni_errors_total'):g}\n")
        for name, server in servers.items():
            code, left = server.stop()
            if code != 0 or left:
                problems.append(f"{name}: exit code {code}, processes left: {left}")
    total = sum(soak.tally.counts.values())
    sys.stdout.write(f"{total} requests in {seconds:.0f} s: {dict(sorted(soak.tally.counts.items()))}\n")
    for problem in problems[:20]:
        sys.stdout.write(f"wrong: {problem}\n")
    verdict = f"{len(problems)} problems" if problems else "every answer right, nothing grew, nothing left"
    sys.stdout.write(f"{verdict}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
