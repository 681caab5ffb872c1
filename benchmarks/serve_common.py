"""Helpers of the `omni serve` benchmarks: a running server, requests to it, and its processes' resources."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
IMAGES = "/v1/images/generations"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TIMEOUT_S = 3600
_BOUNDARY = b"omni-serve-benchmark"


@dataclass(frozen=True)
class Holdings:
    """Resources of a server and its stages; `memory_bytes` is resident and counts shared pages each time.

    `each_bytes` is that of every process, and `shared_bytes` what the machine holds in /dev/shm.
    """

    processes: int
    threads: int
    files: int
    memory_bytes: int
    each_bytes: tuple[int, ...] = ()
    shared_bytes: int = 0


class Server:
    """`omni serve` on a free port; a context manager that stops it and checks its exit."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.log = tempfile.NamedTemporaryFile("w+", prefix="omni-serve-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "omni_cli", "serve", "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f"the server did not start, exit code {code}:\n{Path(self.log.name).read_text()}")
        self.ready: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
        self.log.close()

    def stop(self) -> tuple[int, list[int]]:
        """Stop the server; return its exit code and the ids of processes that outlived it."""
        tree = self._tree()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        _, alive = psutil.wait_procs(tree, timeout=10)
        return code, [process.pid for process in alive]

    def holdings(self) -> Holdings:
        """Current resources; call while no request is in flight."""
        time.sleep(1)  # the server ends its side of a connection a moment after the client
        tree = self._tree()
        return Holdings(
            len(tree),
            sum(process.num_threads() for process in tree),
            sum(process.num_fds() for process in tree),
            sum(each := tuple(process.memory_info().rss for process in tree)),
            each,
            shutil.disk_usage("/dev/shm").used,
        )

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.ready["host"], self.ready["port"], timeout=TIMEOUT_S)

    def post(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, bytes]:
        """(status, body) of one request on its own connection."""
        return post(self.connect(), path, body)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def _tree(self) -> list[psutil.Process]:
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any] | bytes) -> tuple[int, bytes]:
    """(status, body) of one request, after which the connection is closed."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request("POST", path, content, {"Content-Type": content_type(content)})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def form(file: bytes, **fields: str) -> bytes:
    """A form with a sound as its `file`."""
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    parts.append(b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + file)
    begin = b"--" + _BOUNDARY
    written = (begin + b"\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
    return b"".join(written) + begin + b"--\r\n"


def content_type(body: bytes) -> str:
    """The type of a body that is JSON or of `form`."""
    is_form = body.startswith(b"--" + _BOUNDARY)
    return f"multipart/form-data; boundary={_BOUNDARY.decode()}" if is_form else "application/json"
