"""`omni verify --url` calls our own server equal, on each route that it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.media_samples import tone
from support.omni_process import run_omni
from support.omni_server import OmniServer

from omni_cli.encoding import encode_wav

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


def test_cloned_voices_of_request_lines(tmp_path: Path, cloning_server: OmniServer) -> None:
    (tmp_path / "a.wav").write_bytes(encode_wav(*tone(0, 12_345)))
    voices = [{"voice": "a.wav"}, {"voice": ["a.wav"] * 2}, {"voice": "2"}]
    texts = ["A day in May.", "Speaker 1: Hello!\nSpeaker 2: And you?", "hello"]
    lines = [{"prompt": text, **voice} for text, voice in zip(texts, voices, strict=True)]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = verify(tmp_path, cloning_server, "--route", "speech", "--requests", str(tmp_path / "lines.jsonl"))
    assert found["alone = batched", None] == found["repeat", None] == found["seed", None] == "equal"
    notes = [note for line in cloning_server.log("request") for note in line.get("notes", ()) if "12345 Hz" in note]
    assert any("`ref_audio[1]`" in note for note in notes) and any("`ref_audio`" in note for note in notes)


def test_images(tmp_path: Path, image_server: OmniServer) -> None:
    found = verify(tmp_path, image_server, "--route", "images")
    assert found["alone = batched", None] == found["repeat", None] == found["seed", None] == "equal"


def test_transcriptions(tmp_path: Path, whisper_server: OmniServer) -> None:
    found = verify(tmp_path, whisper_server, "--route", "transcriptions")
    assert found["alone = batched", None] == found["repeat", None] == found["modalities", None] == "equal"
