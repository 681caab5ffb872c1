"""The cost of hostile clients to the others: latency during each attack, memory, log and stop time.

Each row has its own `omni serve --profile tiny-omni` on a loopback address, started with a limit of 1024 open files as
most systems have. Ordinary requests are short texts and a small image, one after another. An attack lasts `--seconds`
of measurement; then SIGTERM comes while it goes on. Attackers are processes of this script, which end by themselves.
Idle connections, slow headers and bodies, and small chunks are a reverse proxy's to end (`deploy/nginx.conf`): without
one, others may wait, or get 429 or 503.

    python benchmarks/serve_attacks.py --output-json attacks.json
    python benchmarks/serve_attacks.py idle media --seconds 20
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import io
import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from hostile_media import many_frames, many_pages, many_scans
from serve_common import CHAT

MIB = 2**20
OPEN_FILES = 1024
REQUEST_TIMEOUT_S = 30.0
# An attacker ends after the measurement, the server's end, and some time for a busy machine.
LASTS_S = 90.0
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
Address = tuple[str, int]


def idle(address: Address, latest: float, *, count: int = 10_000) -> None:
    """Open connections and send nothing."""
    sockets = opened(address, count)
    report(len(sockets))
    time.sleep(max(latest - time.monotonic(), 0))


def slow_headers(address: Address, latest: float, *, count: int = 1000) -> None:
    """Send one byte of a header per second."""
    trickle(address, latest, count, f"{HEAD}X-Slow: ".encode(), b"x")


def slow_bodies(address: Address, latest: float, *, count: int = 500) -> None:
    """Send one byte of a body per second."""
    trickle(address, latest, count, f"{HEAD}Content-Length: 100000\r\n\r\n".encode(), b" ")


def trickle(address: Address, latest: float, count: int, begin: bytes, more: bytes) -> None:
    sockets = opened(address, count)
    for connection in sockets:
        try_to_send(connection, begin)
    report(len(sockets))
    while time.monotonic() < latest:
        for connection in sockets:
            try_to_send(connection, more)
        time.sleep(1)


def nested_json(address: Address, latest: float) -> None:
    """Send 100 MB of nested JSON, bodies below the limit of size, and millions of small values."""
    bodies = [
        b"[" * 100_000_000,
        b"[" * (32 * MIB - 1),
        b'{"a":' * (6 * MIB),
        b"[" + b"{}," * (10 * MIB) + b"{}]",
        b'{"seed":' + b"1" * (30 * MIB) + b"}",
        b'{"messages":[{"role":"user","content":[' + b"0," * (15 * MIB) + b"0]}]}",
        b"{" + b",".join(b'"%x":0' % number for number in range(2 * MIB)) + b"}",
    ]
    repeat(address, latest, bodies)


def small_chunks(address: Address, latest: float) -> None:
    """Send a body in chunks of one byte."""
    begin, chunks = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n" * 20_000

    def send() -> None:
        with socket.create_connection(address, 10) as connection:
            connection.sendall(begin)
            while time.monotonic() < latest:
                connection.sendall(chunks)

    report(4)
    in_threads(latest, [send] * 4)


def unread(address: Address, latest: float, *, count: int = 50) -> None:
    """Ask for large answers and read none of them."""
    sockets = opened(address, count, receive_bytes=2048)
    for connection in sockets:
        try_to_send(connection, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    report(len(sockets))
    time.sleep(max(latest - time.monotonic(), 0))


def media(address: Address, latest: float) -> None:
    """Twelve clients send a JPEG of 20,000 scans, a TIFF of 35,000 pages, and a GIF of 400,000 frames."""
    files = [("jpeg", many_scans(20_000, 1024)), ("tiff", many_pages(35_000)), ("gif", many_frames(400_000))]
    repeat(address, latest, [image_chat(kind, content) for kind, content in files], clients=12)


ATTACKS: dict[str, Callable[[Address, float], None]] = {
    "idle": idle,
    "slow-headers": slow_headers,
    "slow-bodies": slow_bodies,
    "nested-json": nested_json,
    "small-chunks": small_chunks,
    "unread": unread,
    "media": media,
}


def opened(address: Address, count: int, *, receive_bytes: int | None = None) -> list[socket.socket]:
    """Open up to `count` connections, as many as this process may have open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets = []
    for number in range(min(count, hard - 100)):
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        connection.connect_ex(address)
        sockets.append(connection)
        if number % 100 == 99:
            time.sleep(0.01)
    time.sleep(0.5)
    return sockets


def try_to_send(connection: socket.socket, content: bytes) -> None:
    with contextlib.suppress(OSError):  # the server has closed it, or takes nothing now
        connection.send(content)


def repeat(address: Address, latest: float, bodies: list[bytes], *, clients: int = 4) -> None:
    """Send the bodies again and again, each client beginning with another one."""

    def client(first: int) -> None:
        number = first
        while time.monotonic() < latest:
            connection = http.client.HTTPConnection(*address, timeout=60)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", CHAT, bodies[number % len(bodies)], {"Content-Type": "application/json"})
                connection.getresponse().read()
            connection.close()
            number += 1

    report(clients)
    in_threads(latest, [lambda first=number: client(first) for number in range(clients)])


def in_threads(latest: float, calls: list[Callable[[], None]]) -> None:
    """Run the calls until `latest`, again if they fail."""

    def loop(call: Callable[[], None]) -> None:
        while time.monotonic() < latest:
            with contextlib.suppress(OSError):
                call()
            time.sleep(0.05)

    for call in calls:
        threading.Thread(target=loop, args=(call,), daemon=True).start()
    time.sleep(max(latest - time.monotonic(), 0))


def report(count: int) -> None:
    """Tell the measuring process that the attack has begun, with its number of connections."""
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()


def plain_image() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (64, 64), (10, 200, 90)).save(file, "PNG")
    return file.getvalue()


def image_chat(kind: str, content: bytes) -> bytes:
    url = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return chat([{"type": "image_url", "image_url": {"url": url}}])


def chat(content: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 2}).encode()


class Client(threading.Thread):
    """Sends a request again and again, each on a new connection."""

    def __init__(self, address: Address, body: bytes) -> None:
        super().__init__(daemon=True)
        self._address, self._body = address, body
        self._is_stopped = threading.Event()
        self.times_s: list[float] = []
        self.failures: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        while not self._is_stopped.wait(0.05):
            began = time.monotonic()
            failure = self._ask()
            if failure is None:
                self.times_s.append(time.monotonic() - began)
            else:
                self.failures[failure] += 1

    def stop(self) -> dict[str, Any]:
        self._is_stopped.set()
        self.join()
        times = self.times_s or [float("nan")]
        return {
            "answered": len(self.times_s),
            "failures": dict(self.failures),
            "p50_s": round(statistics.median(times), 4),
            "max_s": round(max(times), 4),
        }

    def _ask(self) -> str | None:
        connection = http.client.HTTPConnection(*self._address, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request("POST", CHAT, self._body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()
        return None if response.status == 200 else str(response.status)


class Memory(threading.Thread):
    """Peak resident memory of the server's own process, and of all its processes together."""

    def __init__(self, process_id: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(process_id)
        self.server_bytes = self.all_bytes = 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                own = self._process.memory_info().rss
                others = sum(resident(child) for child in self._process.children(recursive=True))
                self.server_bytes = max(self.server_bytes, own)
                self.all_bytes = max(self.all_bytes, own + others)
                time.sleep(0.1)


def resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


@contextlib.contextmanager
def server(log: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    command = ["-m", "omni_cli", "serve", "--profile", "tiny-omni", "--port", "0", "--json"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard)),
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        ready = json.loads(line)
        yield process, (ready["host"], ready["port"])
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Measure one attack, or none with the name `alone`."""
    with tempfile.TemporaryDirectory(prefix="serve-attacks-") as folder, contextlib.ExitStack() as stack:
        log = Path(folder) / "log"
        process, address = stack.enter_context(server(log))
        bodies = {"text": chat("hello"), "image": image_chat("png", plain_image())}
        for body in bodies.values():  # the first request of a kind takes longer
            client = Client(address, body)
            while not client.times_s and not client.failures:
                time.sleep(0.05)
            client.stop()
        logged = log.stat().st_size
        memory = Memory(process.pid)
        attacker, connections = None, 0
        if name != "alone":
            own = [sys.executable, __file__, "--attack", name, "--address", f"{address[0]}:{address[1]}"]
            attacker = subprocess.Popen([*own, "--seconds", str(seconds + LASTS_S)], stdout=subprocess.PIPE, text=True)
            stack.callback(end, attacker)
            assert attacker.stdout is not None
            connections = int(attacker.stdout.readline())
        clients = {kind: Client(address, body) for kind, body in bodies.items()}
        time.sleep(seconds)
        results = {kind: client.stop() for kind, client in clients.items()}
        logged = log.stat().st_size - logged
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
            stop_s: float | None = round(time.monotonic() - began, 2)
        except subprocess.TimeoutExpired:
            stop_s = None
    return {
        "attack": name,
        "connections": connections,
        **results,
        "server_peak_bytes": memory.server_bytes,
        "all_peak_bytes": memory.all_bytes,
        "log_bytes": logged,
        "stop_s": stop_s,
    }


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def table(rows: list[dict[str, Any]]) -> str:
    head = f"{'attack':<13}{'clients':>8}" + "".join(
        f"{f'{kind} ok':>10}{'failed':>8}{'p50 ms':>9}{'max ms':>9}" for kind in ("text", "image")
    )
    lines = [f"{head}{'server MiB':>12}{'all MiB':>9}{'log KiB':>9}{'stop s':>8}"]
    for row in rows:
        line = f"{row['attack']:<13}{row['connections']:>8}"
        for kind in ("text", "image"):
            result = row[kind]
            line += f"{result['answered']:>10}{sum(result['failures'].values()):>8}"
            line += f"{result['p50_s'] * 1000:>9.0f}{result['max_s'] * 1000:>9.0f}"
        line += f"{row['server_peak_bytes'] / MIB:>12.0f}{row['all_peak_bytes'] / MIB:>9.0f}"
        stop = "> 60" if row["stop_s"] is None else f"{row['stop_s']:.1f}"
        lines.append(f"{line}{row['log_bytes'] / 1024:>9.0f}{stop:>8}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[[], "alone", *ATTACKS], metavar="ATTACK", help="default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measurement per attack")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack is not None:
        host, _, port = options.address.rpartition(":")
        ATTACKS[options.attack]((host, int(port)), time.monotonic() + options.seconds)
        return
    rows = []
    for name in options.attacks or ["alone", *ATTACKS]:
        rows.append(measure(name, options.seconds))
        sys.stderr.write(f"{name} is measured\n")
    sys.stdout.write(f"{table(rows)}\n")
    if options.output_json is not None:
        options.output_json.write_text(json.dumps({"seconds": options.seconds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
