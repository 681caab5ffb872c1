"""Only URLs below an allowed prefix are requested, and from that prefix's host; data URLs of all kinds are read."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from omni_cli.core.errors import UsageError
from omni_cli.requests.encoding import encode_png
from omni_cli.serve.limits import Limits
from omni_cli.serve.media import decode_media
from omni_cli.serve.sites import MediaPrefix

FOLDER = MediaPrefix.read("https://Good.example/media/")


@pytest.mark.parametrize(
    ("url", "requested"),
    [
        ("https://good.example/media/cat.png", "https://good.example/media/cat.png"),
        ("HTTPS://GOOD.EXAMPLE:443/media/a%20b.png?size=2#part", "https://good.example/media/a%20b.png?size=2"),
        ("https://good.example/media", "https://good.example/media"),
    ],
)
def test_a_url_below_the_prefix(url: str, requested: str) -> None:
    assert FOLDER.match(url) == requested


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example/media/cat.png",
        "https://good.example:8443/media/cat.png",
        "https://good.example/mediacat.png",
        "https://good.example/",
        "https://good.example@evil/media/cat.png",
        "https://good.example:pw@evil/media/cat.png",
        "https://user@good.example/media/cat.png",
        "https://good.example.evil/media/cat.png",
        "https://good.example./media/cat.png",
        "https://evil\\@good.example/media/cat.png",
        "https://evil#@good.example/media/cat.png",
        "https://evil?@good.example/media/cat.png",
        "https://good.example\\.evil/media/cat.png",
        "https://good.example/media/../secret",
        "https://good.example/media/%2e%2E/secret",
        "https://good.example/media/..%2fsecret",
        "https://good.example/media/..\\secret",
        "https://good.example:99999999/media/cat.png",
        "https://[::1/media/cat.png",
        "https:///media/cat.png",
        "//good.example/media/cat.png",
        "file:///media/cat.png",
        "",
    ],
)
def test_a_url_elsewhere(url: str) -> None:
    assert FOLDER.match(url) is None


def test_prefixes() -> None:
    assert MediaPrefix.read("http://[::1]:80").match("http://[::1]?x=1") == "http://[::1]/?x=1"
    assert MediaPrefix.read("http://10.0.0.3:9000/a").match("http://10.0.0.3:9000/a/b") == "http://10.0.0.3:9000/a/b"
    for wrong in ("good.example", "ftp://good.example/", "https://", "https://user@good.example/", "https://a/?b", "*"):
        with pytest.raises(UsageError, match="not the beginning of an HTTP URL"):
            MediaPrefix.read(wrong)


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
PNG = encode_png(PIXELS)
ENCODED = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{ENCODED}",
        f"data:image/png;name=a.png;charset=utf-8;base64,{ENCODED}",
        f"data:;base64,{ENCODED}",
        f"DATA:image/PNG;BASE64,{ENCODED}",
        f"data:image/jpeg;base64,{ENCODED}",
        f"data:image/png;base64,{ENCODED.rstrip('=')}",
        f"data:image/png;base64,{ENCODED[:76]}\r\n{ENCODED[76:]}\n",
        f"data:image/png;base64,{ENCODED.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
    ],
    ids=lambda url: url[:40],
)
def test_data_urls(url: str) -> None:
    async def decode() -> np.ndarray:
        return await decode_media(lambda decoder: decoder.image(url, "url"), Limits(), threads, ())

    with ThreadPoolExecutor(1) as threads:
        np.testing.assert_array_equal(asyncio.run(decode()), PIXELS)
