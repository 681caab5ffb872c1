"""One server per profile for this folder, whose tests run one after another, and small inputs."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chromium import Chromium
from support.omni_requests import FEW_STEPS
from support.omni_server import KEY, OmniServer
from support.served_page import ServedPage
from support.tiny_models import tool_caller, whisper

from omni_cli.checkpoints.tiny_pipelines import tiny_image
from omni_cli.requests.encoding import encode_png, encode_wav

# Short answers keep the speech short, and with it the tests.
TINY_OMNI = (
    "--profile",
    "tiny-omni",
    "--set",
    "thinker.sampling.max_tokens=16",
    "--set",
    "talker.sampling.max_tokens=40",
    "--set",
    FEW_STEPS,
)


def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`start(*arguments)` -> an `OmniServer` that is stopped cleanly at the end."""
    servers: list[OmniServer] = []

    def start(*arguments: str, **options: Any) -> OmniServer:
        servers.append(OmniServer(tmp_path_factory.mktemp("server"), *arguments, **options))
        return servers[-1]

    yield start
    ends = [server.stop() for server in servers]
    for server, ended in zip(servers, ends, strict=True):
        assert ended.leftovers == ()
        assert ended.code in (0, 130), server.raw_log


start_shared_server = pytest.fixture(_servers, scope="package", name="start_shared_server")
start_server = pytest.fixture(_servers, scope="module", name="start_server")


@pytest.fixture(scope="package")
def omni(start_shared_server: Any) -> OmniServer:
    return start_shared_server(*TINY_OMNI)


@pytest.fixture(scope="session")
def tool_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_caller(tmp_path_factory.mktemp("models") / "tool_caller")


@pytest.fixture(scope="package")
def tools_server(tool_folder: Path, start_shared_server: Any) -> OmniServer:
    """Its tool parser is found by the checkpoint's template."""
    return start_shared_server("--model", str(tool_folder))


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whisper with random weights."""
    return whisper(tmp_path_factory.mktemp("models") / "whisper")


@pytest.fixture(scope="package")
def whisper_server(whisper_folder: Path, start_shared_server: Any) -> OmniServer:
    return start_shared_server("--model", str(whisper_folder))


@pytest.fixture(scope="package")
def image_server(start_shared_server: Any) -> OmniServer:
    return start_shared_server("--profile", "tiny-image")


@pytest.fixture(scope="package")
def limited(start_shared_server: Any) -> OmniServer:
    """A server with the key `KEY` and a value for every limit, for pages of `https://app.example`."""
    return start_shared_server(
        *("--profile", "tiny-image", "--max-requests", "3", "--max-body-bytes", "100000", "--max-n", "2"),
        *("--max-prompt-chars", "500", "--timeout", "10", "--allow-origin", "https://app.example/"),
        environment={"OMNI_API_KEY": KEY},
        warm=True,
    )


@pytest.fixture(scope="module")
def omni_engine(start_engine: Any) -> Any:
    """The same profile as `omni`, without a server."""
    overrides = [TINY_OMNI[index + 1] for index, word in enumerate(TINY_OMNI) if word == "--set"]
    return start_engine("tiny-omni", *overrides)


@pytest.fixture(scope="module")
def image_engine(start_engine: Any) -> Any:
    return start_engine("tiny-image")


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """uint8 RGB (56, 84, 3)."""
    return np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def image_url(image: np.ndarray) -> str:
    return f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode()}"


@pytest.fixture(scope="session")
def sound() -> bytes:
    """A WAV file of half a second at 16 kHz."""
    times = np.arange(8000) / 16_000
    return encode_wav(np.sin(2 * np.pi * 440 * times).astype(np.float32) / 2, 16_000)


@pytest.fixture(scope="session")
def read_image() -> Callable[[str], np.ndarray]:
    """Decode base64 of an image file to pixels."""

    def read(b64_json: str) -> np.ndarray:
        from PIL import Image

        return np.array(Image.open(io.BytesIO(base64.b64decode(b64_json))))

    return read


@pytest.fixture(scope="session")
def inpainting(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments for tiny-image's weights in an inpainting pipeline."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-inpaint"
    tiny_image(folder, 0)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": "QwenImageInpaintPipeline"}))
    return ("--profile", "tiny-image", "--model", str(folder))


@pytest.fixture(scope="package")
def edit_server(start_shared_server: Any, inpainting: tuple[str, ...]) -> OmniServer:
    return start_shared_server(*inpainting)


@pytest.fixture(scope="package")
def video_server(start_shared_server: Any, tmp_path_factory: pytest.TempPathFactory) -> OmniServer:
    """Keeps six videos, and makes three at once."""
    limits = ("--max-videos", "6", "--max-requests", "3")
    folder = tmp_path_factory.mktemp("videos") / "kept"
    return start_shared_server("--profile", "tiny-video", "--output-dir", str(folder), *limits)


@pytest.fixture(scope="package")
def cloning_server(start_shared_server: Any, tmp_path_factory: pytest.TempPathFactory) -> OmniServer:
    """Speaks up to 20 tokens, and keeps voices in the folder `voices` of its own."""
    folder = tmp_path_factory.mktemp("saved") / "voices"
    limits = ("--set", "speaker.sampling.max_tokens=20", "--max-audio-seconds", "200")
    return start_shared_server("--profile", "tiny-vibevoice", *limits, "--voices-dir", str(folder))


@pytest.fixture
def page(browser: Chromium) -> Iterator[ServedPage]:
    yield ServedPage(browser)
    browser.call(
        "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    browser.evaluate("sessionStorage.clear()")
