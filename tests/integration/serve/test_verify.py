"""`omni verify --url` calls our own server equal, on each route that it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.omni_process import run_omni
from support.omni_server import OmniServer

pytestmark = pytest.mark.slow


def verify(tmp_path: Path, server: OmniServer, *arguments: str) -> dict[tuple[str, str | None], str]:
    """The verdicts by check and mode; the exit code is 0."""
    folder = tmp_path / "run"
    folder.mkdir()
    ended = run_omni(folder, "verify", "--url", server.url, *arguments, "--json", warm=False)
    assert ended.code == 0, ended.out + ended.err
    ended.check_clean()
    rows: list[dict[str, Any]] = json.loads(ended.out)["rows"]
    return {(row["check"], row.get("mode")): row["verdict"] for row in rows}


def test_chats(tmp_path: Path, omni: OmniServer) -> None:
    found = verify(tmp_path, omni)
    assert found["limits", "n=2"] == "equal"
    equal = ("alone = batched", "repeat", "seed", "streamed = whole", "limits", "modalities")
    assert {check: found[check, None] for check in equal} == dict.fromkeys(equal, "equal")


def test_speech(tmp_path: Path, omni: OmniServer) -> None:
    found = verify(tmp_path, omni, "--route", "speech")
    assert found["alone = batched", None] == found["repeat", None] == found["seed", None] == "equal"


def test_images(tmp_path: Path, image_server: OmniServer) -> None:
    found = verify(tmp_path, image_server, "--route", "images")
    assert found["alone = batched", None] == found["repeat", None] == found["seed", None] == "equal"


def test_transcriptions(tmp_path: Path, whisper_server: OmniServer) -> None:
    found = verify(tmp_path, whisper_server, "--route", "transcriptions")
    assert found["alone = batched", None] == found["repeat", None] == found["modalities", None] == "equal"
