"""Clients that people have, unmodified: what is declared to work in each script of `tests/clients` works, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import clients, clients_page
from support.clients import CLIENTS, EVERY_LANDING, FAILS, Client
from support.omni_process import ROOT
from support.omni_server import OmniServer

from omni_cli.requests.encoding import encode_png


def runs() -> list[Any]:
    """A parameter set for each client and kind of server; those that take long or download weights are nightly."""
    return [
        pytest.param(
            client,
            kind,
            id=f"{client.name}-{kind}",
            marks=() if client.name in EVERY_LANDING and kind != "text" else pytest.mark.nightly,
        )
        for kind in clients.ALL_KINDS
        for client in CLIENTS
        if kind in client.kinds
    ]


@pytest.fixture(scope="module")
def text(start_server: Any, smollm2: Path) -> OmniServer:
    return start_server(*clients.server_arguments("text", smollm2))


@pytest.fixture(scope="module")
def speech(start_server: Any) -> OmniServer:
    return start_server(*clients.server_arguments("speech", None))


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory, image: np.ndarray, sound: bytes) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("media")
    (folder / "image.png").write_bytes(encode_png(image))
    (folder / "sound.wav").write_bytes(sound)
    return folder / "image.png", folder / "sound.wav"


@pytest.mark.parametrize(("client", "kind"), runs())
def test_a_client(
    request: pytest.FixtureRequest, client: Client, kind: str, media: tuple[Path, Path], tiny_omni_path: Path
) -> None:
    try:
        clients.command(client)
    except clients.CannotInstall as error:
        pytest.skip(f"its packages cannot be installed: {error}")
    shared = {"image": "image_server", "transcription": "whisper_server"}
    server = request.getfixturevalue(shared.get(kind, kind))
    folder = request.getfixturevalue("smollm2") if kind == "text" else tiny_omni_path
    rows = clients.run(client, clients.served(server, kind, folder), *media)
    assert rows
    unexpected = [row for row in rows if row.ok == ((row.client, row.feature) in FAILS)]
    assert not unexpected, "\n".join(map(str, unexpected))


def test_the_page_has_these_versions_and_failures() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    assert clients_page.versions() in page, "python scripts/clients_page.py --write"
    assert page.count("**no**") == len(FAILS) and "unexpected" not in page
    assert all(f": {reason}\n" in page for reason in FAILS.values())
