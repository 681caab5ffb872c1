"""The real `omni serve` in a process of its own, and ways to talk to it."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil

from support.omni_process import TIMEOUT_S, Ended, OmniProcess, may_be_warm

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
IMAGES = "/v1/images/generations"
VIDEOS = "/v1/videos"
EDITS = "/v1/images/edits"
KEY = "a-key-that-nobody-must-see"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The content of an error, in OpenAI's shape."""
        error = self.document["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


class OmniServer:
    """`folder` is empty and its own; `options` as of `OmniProcess`, and as warm as a command by default."""

    def __init__(self, folder: Path, *arguments: str, wait: bool = True, **options: Any):
        self._log = folder / "stderr"
        options.setdefault("warm", may_be_warm(options))
        with self._log.open("w") as log:
            port = () if "--port" in arguments else ("--port", "0")
            self.process = OmniProcess(folder, "serve", *port, "--json", *arguments, stderr=log, **options)
        self.ready: dict[str, Any] = self._ready_line() if wait else {}

    def _ready_line(self) -> dict[str, Any]:
        out: Any = self.process.popen.stdout
        readable, _, _ = select.select([out], [], [], TIMEOUT_S)
        assert readable, "it never became ready"
        line = out.readline()
        assert line, self._log.read_text()
        return json.loads(line)

    @property
    def url(self) -> str:
        return self.ready["url"]

    def client(self, api_key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, **options)

    def request(self, method: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Answer:
        """One request on a connection of its own; a dict goes out as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection(self.ready["host"], self.ready["port"], timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def send_and_hang_up(self, path: str, body: dict[str, Any], after_s: float) -> None:
        """Send a request and break the connection after a while, as a client does that is killed."""
        content = json.dumps(body).encode()
        length = len(content)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}"
        with socket.create_connection((self.ready["host"], self.ready["port"])) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + content)
            time.sleep(after_s)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self.request("GET", "/metrics").body.decode().splitlines()
        found = [
            line
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{")) and all(label in line for label in wanted)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log that tell of this; every line has to be JSON."""
        whole, _, _ = self._log.read_text().rpartition("\n")  # the last line may not be written to its end
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if line["event"] == event]

    @property
    def raw_log(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        """Return True if every stage is loaded."""
        return self.request("GET", "/ready").status == 200

    def stage_processes(self) -> list[psutil.Process]:
        """Those of the stages, which lead groups of their own, in the order of their start."""
        server = psutil.Process(self.process.pid)
        children = [child for child in server.children(recursive=True) if child.name().startswith("python")]
        leaders = [child for child in children if _leads_its_group(child.pid) and child.ppid() != server.pid]
        return sorted(leaders, key=lambda child: child.create_time())

    def media_processes(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "omni_cli.requests.media.worker" in child.cmdline()]

    def wait_until(self, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.02)
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Send a signal, if it still runs, and wait for the end."""
        if self.process.popen.poll() is None:
            self.process.popen.send_signal(number)
        return self.process.end()


class Caller(threading.Thread):
    """A request in the background; `result` is the answer, or the error of the connection."""

    def __init__(self, server: OmniServer, path: str, body: bytes | dict[str, Any], **headers: str) -> None:
        super().__init__()
        self._arguments = (server, path, body, headers)
        self.result: Any = None
        self.start()

    def run(self) -> None:
        server, path, body, headers = self._arguments
        try:
            self.result = server.request("POST", path, body, **headers)
        except OSError as error:
            self.result = error


def _leads_its_group(pid: int) -> bool:
    return os.getpgid(pid) == pid
