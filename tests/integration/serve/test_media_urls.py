"""Media by URL: from the places that `--allow-media-url` names, within the limits; by redirects, too."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.omni_server import CHAT, OmniServer

from omni_cli.requests.encoding import encode_png

THINKER = """
version: 1
name: chat
model: builtin:tiny-omni
dtype: float32
stages:
  thinker: {kind: ar, backend: vllm, max_model_len: 2048, kv_cache_memory_bytes: 67108864}
"""
LARGE = 200_000


class MediaServer(ThreadingHTTPServer):
    """Serves `files`; a text is where its path redirects to, and None is never answered."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes | str | None] = {}
        self.requested: list[str] = []
        self.closed = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: MediaServer

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
        file = self.server.files.get(self.path, b"")
        if file is None:
            self.server.closed.wait(60)
            return
        self.send_response(302 if isinstance(file, str) else 200 if file else 404)
        if isinstance(file, str):
            self.send_header("Location", file)
        self.end_headers()
        if isinstance(file, bytes):
            self.wfile.write(file)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def media(image: np.ndarray, sound: bytes) -> Iterator[MediaServer]:
    with MediaServer() as server:
        server.files = {
            "/media/cat.png": encode_png(image),
            "/media/tone.wav": sound,
            "/media/large": b"x" * LARGE,
            "/media/hangs": None,
            "/media/moved": "cat.png",
            "/media/out": "/secret",
            "/media/away": f"http://localhost:{server.server_port}/media/cat.png",
            "/media/loop": "loop",
            "/secret": encode_png(image),
        }
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.closed.set()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(start_server: Any, media: MediaServer, tmp_path_factory: pytest.TempPathFactory) -> OmniServer:
    profile: Path = tmp_path_factory.mktemp("profile") / "chat.yaml"
    profile.write_text(THINKER)
    allowed = ("--allow-media-url", f"{media.url}/media/", "--allow-origin", "*")
    return start_server("--profile", str(profile), "--max-body-bytes", "100000", *allowed)


def chat(server: OmniServer, url: str, kind: str = "image_url", **fields: Any) -> Any:
    part = {"input_audio": {"data": url, "format": "wav"}} if kind == "input_audio" else {kind: {"url": url}}
    messages = [{"role": "user", "content": [{"type": kind, **part}, {"type": "text", "text": "what is it?"}]}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    return server.request("POST", CHAT, body, origin="https://app.example")


def test_a_fetched_file_is_as_good_as_a_sent_one(server: OmniServer, media: MediaServer, sound: bytes) -> None:
    cat = media.files["/media/cat.png"]
    assert isinstance(cat, bytes)
    png = base64.b64encode(cat).decode()
    wav = base64.b64encode(sound).decode()
    for kind, sent, paths in (
        ("image_url", f"data:image/png;base64,{png}", ("cat.png", "cat.png?size=1", "moved")),
        ("input_audio", wav, ("tone.wav",)),
    ):
        expected = chat(server, sent, kind).document["choices"][0]["message"]["content"]
        for path in paths:
            media.files["/media/cat.png?size=1"] = media.files["/media/cat.png"]
            answer = chat(server, f"{media.url}/media/{path}", kind)
            assert answer.status == 200, answer.body
            assert answer.document["choices"][0]["message"]["content"] == expected
    streamed = chat(server, f"{media.url}/media/cat.png", stream=True)
    assert streamed.status == 200 and streamed.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/media/out", "is not a URL that this server fetches"),
        ("/media/away", "is not a URL that this server fetches"),
        ("/secret", "allow it by `--allow-media-url`"),
        ("/media/../secret", "is not a URL that this server fetches"),
        ("/media/missing", "its server answers with HTTP 404"),
        ("/media/large", "may have 100000 bytes together"),
        ("/media/loop", "more than 5 redirects"),
    ],
)
def test_what_is_refused(server: OmniServer, media: MediaServer, path: str, message: str) -> None:
    answer = chat(server, media.url + path)
    assert answer.status == 400 and message in answer.error["message"]
    assert answer.error["code"] == "invalid_image_url"
    assert answer.error["param"] == "messages[0].content[0].image_url.url"
    assert "/secret" not in media.requested


def test_a_file_that_is_not_an_image(server: OmniServer, media: MediaServer) -> None:
    answer = chat(server, f"{media.url}/media/tone.wav")
    assert answer.status == 400 and answer.error["code"] == "invalid_image"


def test_a_client_that_disconnects_ends_the_download(server: OmniServer, media: MediaServer) -> None:
    part = {"type": "image_url", "image_url": {"url": f"{media.url}/media/hangs"}}
    server.send_and_hang_up(CHAT, {"messages": [{"role": "user", "content": [part]}]}, after_s=1)
    # Before the download's own time limit of 30 s.
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 0, timeout_s=25)
    assert "/media/hangs" in media.requested
