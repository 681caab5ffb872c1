"""A small server that speaks the protocol of the Hugging Face hub; a fault of a kind can be planted."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote

COMMIT = "1" * 40
REPO = "someone/tiny"
_PATH = re.compile(r"/(?:api/models/)?(\w+/[\w.-]+)(/.*)?")


@dataclass
class HubFaults:
    """Planted faults.

    `cuts` maps a file to the positions at which its connections end in turn; `reset` ends them hard. The next
    `num_failures` requests get `status`. `gated`: files, but not their list, need a token. `stalls_at` is the position
    of a file at which nothing more is sent, `gone_after` the number of bytes after which no request is answered.
    `pause_s` is waited before each piece of 64 KiB. `sizes` are those that the list of files names.
    """

    cuts: dict[str, list[int]] = field(default_factory=dict)
    reset: bool = False
    status: int = 500
    num_failures: int = 0
    gated: bool = False
    stalls_at: dict[str, int] = field(default_factory=dict)
    gone_after: int | None = None
    pause_s: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)


class HubServer:
    """Serves `files` as the repository `REPO` from a thread while its `with` block runs."""

    def __init__(self, files: dict[str, bytes], faults: HubFaults | None = None) -> None:
        self.files = files
        self.faults = faults or HubFaults()
        self.sent: Counter[str] = Counter()
        self.ranges: list[tuple[str, int]] = []
        self.lock = threading.Lock()
        owner = self

        class Handler(_HubHandler):
            hub = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.shutdown_request = self._server.close_request  # type: ignore[method-assign]  # no FIN before a reset

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def num_sent(self) -> int:
        return sum(self.sent.values())

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class _HubHandler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        faults = self.hub.faults
        with self.hub.lock:
            fails = faults.num_failures > 0
            faults.num_failures -= fails
        if faults.gone_after is not None and self.hub.num_sent >= faults.gone_after:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fails:
            self._error(faults.status, "Busy")
            return
        match = _PATH.fullmatch(unquote(self.path).partition("?")[0])
        rest = (match[2] or "") if match else ""
        if self.headers.get("Authorization") == "Bearer wrong":
            self._error(401, None, "Invalid credentials in Authorization header")
        elif match is None or match[1] != REPO:
            self._error(404, "RepoNotFound")
        elif self.path.startswith("/api/"):
            self._api(rest)
        elif faults.gated:
            self._error(403, "GatedRepo")
        else:
            self._file(rest.removeprefix(f"/resolve/{COMMIT}/"))

    def _api(self, rest: str) -> None:
        revision = rest.split("/")[2] if rest.count("/") >= 2 else "main"
        if revision not in ("main", "v1", COMMIT):
            self._error(404, "RevisionNotFound")
        elif rest.startswith("/tree/"):
            sizes = {name: len(data) for name, data in self.hub.files.items()} | self.hub.faults.sizes
            self._json(
                [
                    {"type": "file", "path": name, "size": sizes[name], "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in self.hub.files.items()
                ]
            )
        else:
            siblings = [{"rfilename": name} for name in self.hub.files]
            self._json({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})

    def _file(self, name: str) -> None:
        data = self.hub.files.get(name)
        if data is None:
            self._error(404, "EntryNotFound")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self._send(name, data, start)

    def _send(self, name: str, data: bytes, start: int) -> None:
        faults, hub = self.hub.faults, self.hub
        with hub.lock:
            hub.ranges.append((name, start))
            cuts = faults.cuts.get(name)
            cut = cuts.pop(0) if cuts else None
        end = min(position for position in (cut, faults.stalls_at.get(name), len(data)) if position is not None)
        try:
            while start < end and not (faults.gone_after is not None and hub.num_sent >= faults.gone_after):
                time.sleep(faults.pause_s)
                piece = data[start : min(end, start + (1 << 16))]
                self.wfile.write(piece)
                start += len(piece)
                with hub.lock:
                    hub.sent[name] += len(piece)
        except OSError:
            start = end = -1  # the client has disconnected
        if start == len(data):
            return
        if name in faults.stalls_at and cut is None:
            time.sleep(30)
        self.close_connection = True
        if faults.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _error(self, status: int, code: str | None, message: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message or f"{code}")
        self.send_header("Content-Length", "0")
        self.end_headers()
