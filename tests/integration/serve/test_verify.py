"""`omni verify --url` calls our own server equal, on each route that it has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.media_samples import tone
from support.omni_process import run_omni
from support.omni_server import OmniServer

from omni_cli.requests.encoding import encode_wav

pytestmark = pytest.mark.slow


def verify(tmp_path: Path, server: OmniServer, *arguments: str, code: int = 0) -> dict[tuple[str, str | None], str]:
    """The verdicts by check and mode."""
    folder = tmp_path / "run"
    folder.mkdir()
    ended = run_omni(folder, "verify", "--url", server.url, *arguments, "--json", warm=False)
    assert ended.code == code, ended.out + ended.err
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
    voices: list[dict[str, Any]] = [{"voice": "a.wav"}, {"voice": ["a.wav"] * 2}, {"voice": "2"}]
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


def test_transcriptions(tmp_path: Path, whisper_folder: Path, whisper_server: OmniServer) -> None:
    arguments = ("--route", "transcriptions", "--model", str(whisper_folder))
    found = verify(tmp_path, whisper_server, *arguments)
    equal = ("reference", "alone = batched", "repeat", "streamed = whole", "modalities")
    assert {check: found[check, None] for check in equal} == dict.fromkeys(equal, "equal")


def test_other_weights_are_found_by_the_transcripts(
    tmp_path: Path, whisper_folder: Path, whisper_server: OmniServer
) -> None:
    other = shutil.copytree(whisper_folder, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    # Times 1.3 changes tokens that a next window hears again, and no word of these two transcripts, which is all that a
    # server tells.
    weights["model.decoder.layers.1.fc2.weight"] *= 3
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    arguments = ("--route", "transcriptions", "--model", str(other))
    found = verify(tmp_path, whisper_server, *arguments, code=5)
    assert [check for (check, _), verdict in found.items() if verdict == "different"] == ["reference"]
