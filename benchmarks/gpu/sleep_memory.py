"""Device memory of `omni serve` before a request, after it, asleep and awake, and whether it answers as before.

    PYTHONPATH=. python benchmarks/gpu/sleep_memory.py speech|chat [OPTIONS OF `omni serve`]...

The memory is what nvidia-smi shows for the whole device; there is none on a machine without it. Prints a line per
moment, with the seconds that the call before it took, and exits with 1 if an answer after a sleep is another one.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

BODIES = {
    "speech": ("/v1/audio/speech", {"input": "A day in May.", "seed": 3, "response_format": "wav"}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}),
}
START_S, CALL_S = 300, 120


def main() -> int:
    route, *options = sys.argv[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    say("before the server")
    command = [sys.executable, "-m", "omni_cli", "serve", "--port", str(port), *options]
    server = subprocess.Popen(command)
    try:
        return int(not answers_as_before(f"http://127.0.0.1:{port}", route, server))
    finally:
        server.terminate()
        server.wait()


def answers_as_before(url: str, route: str, server: subprocess.Popen[bytes]) -> bool:
    timed("ready", lambda: wait(url, server))
    first = timed("after a request", lambda: ask(url, route))
    same = True
    for query in ("level=1", "level=1"):
        timed("asleep", lambda query=query: post(f"{url}/sleep?{query}"))
        timed("awake", lambda: post(f"{url}/wake_up"))
        same &= timed("after the same request", lambda: ask(url, route)) == first
    sys.stdout.write(f"answers of {len(first)} bytes: {'the same' if same else 'NOT THE SAME'}\n")
    return same


def ask(url: str, route: str) -> bytes:
    """Return the audio, or the text."""
    path, body = BODIES[route]
    answer = post(url + path, {"model": served_model(url), **body})
    return answer if route == "speech" else json.loads(answer)["choices"][0]["message"]["content"].encode()


def served_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=CALL_S) as answer:
        return str(json.load(answer)["data"][0]["id"])


def post(url: str, body: dict[str, object] | None = None) -> bytes:
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=CALL_S) as answer:
        return bytes(answer.read())


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=CALL_S):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit("the server is not ready")


def timed(moment: str, call: Callable[[], object]) -> object:
    began = time.monotonic()
    result = call()
    say(f"{moment}, {time.monotonic() - began:.2f} s")
    return result


def say(moment: str) -> None:
    used = ""
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
        used = ": " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    sys.stdout.write(f"{moment}{used}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
