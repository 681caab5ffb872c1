"""`omni verify --url`: a server that is right is called equal, and each fault of one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chat_server import ChatServer

from omni_cli.cli.app import run
from omni_cli.requests.encoding import encode_wav

pytestmark = pytest.mark.slow


def verify(server: ChatServer, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the rows by name."""
    path = tmp_path / "verify.json"
    code = run(["verify", "--url", server.url, "--output-json", str(path), "-q", *arguments])
    document = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = {f"{row['check']} ({row['mode']})" if row.get("mode") else row["check"]: row for row in document["rows"]}
    return code, rows


def verdicts(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["verdict"] for name, row in rows.items()}


def test_a_right_server_is_equal_in_all_rows(tmp_path: Path) -> None:
    with ChatServer() as server:
        code, rows = verify(server, tmp_path)
    assert code == 0
    assert verdicts(rows) == {
        "reference": "not checked", "alone = batched": "equal", "repeat": "equal", "seed": "equal",
        "streamed = whole": "equal", "limits (n=2)": "equal", "limits": "equal", "modalities": "equal",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        ("loses a chunk", "streamed = whole"),
        ("keeps stop", "limits"),
        ("wrong usage", "limits"),
        ("ignores seed", "seed"),
        ("ignores images", "modalities"),
        ("neighbour", "alone = batched"),
    ],
)
def test_a_fault_is_named(fault: str, row: str, tmp_path: Path) -> None:
    with ChatServer(fault) as server:
        code, rows = verify(server, tmp_path)
    assert code == 5 and rows[row]["verdict"] == "different", verdicts(rows)
    if fault != "neighbour":
        assert [name for name, verdict in verdicts(rows).items() if verdict == "different"] == [row]


@pytest.mark.parametrize(
    ("fault", "row"),
    [("refuses seed", "seed"), ("refuses n", "limits (n=2)"), ("refuses images", "modalities (images)")],
)
def test_what_a_server_refuses_is_not_checked(fault: str, row: str, tmp_path: Path) -> None:
    with ChatServer(fault) as server:
        code, rows = verify(server, tmp_path)
    assert code == 0 and rows[row]["verdict"] == "not checked"
    words = "takes no images" if fault == "refuses images" else "is not supported"
    assert words in rows[row]["why"]
    assert rows["alone = batched"]["verdict"] == "equal"


def test_a_server_without_log_probabilities_is_compared_by_its_text(tmp_path: Path) -> None:
    with ChatServer("refuses logprobs", "refuses top_logprobs", "refuses return_token_ids") as server:
        code, rows = verify(server, tmp_path)
    assert code == 0 and rows["alone = batched"]["verdict"] == "equal"
    with ChatServer("refuses logprobs", "neighbour") as server:
        code, rows = verify(server, tmp_path)
    assert code == 5
    assert rows["alone = batched"]["why"] == "the server gives no log-probabilities, so a near tie cannot be told"


def test_transcripts(tmp_path: Path) -> None:
    with ChatServer() as server:
        code, rows = verify(server, tmp_path, "--route", "transcriptions")
    assert code == 0
    assert verdicts(rows) == {
        "reference": "not checked", "alone = batched": "equal", "repeat": "equal", "seed": "not checked",
        "streamed = whole": "equal", "limits": "not checked", "modalities": "equal",
    }  # fmt: skip


def test_a_server_may_ignore_that_a_transcript_is_to_be_streamed(tmp_path: Path) -> None:
    with ChatServer("ignores stream") as server:
        code, rows = verify(server, tmp_path, "--route", "transcriptions")
    assert code == 0 and rows["streamed = whole"]["verdict"] == "not checked"
    assert rows["streamed = whole"]["why"] == "the server ignores `stream`"


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        ("loses a chunk", "streamed = whole"),
        ("cuts the last event", "streamed = whole"),
        ("neighbour", "alone = batched"),
    ],
)
def test_a_fault_of_transcripts_is_named(fault: str, row: str, tmp_path: Path) -> None:
    with ChatServer(fault) as server:
        code, rows = verify(server, tmp_path, "--route", "transcriptions")
    assert code == 5 and rows[row]["verdict"] == "different", verdicts(rows)


def test_a_translation_is_asked_for_at_its_own_route_and_not_streamed(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(encode_wav(np.sin(np.arange(8000) * 0.1).astype(np.float32), 16_000))
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"audio": "a.wav", "task": "translate"}))
    with ChatServer() as server:
        code, rows = verify(server, tmp_path, "--route", "transcriptions", "--requests", str(lines))
    assert code == 0 and rows["repeat"]["verdict"] == "equal"
    assert rows["streamed = whole"]["why"] == "the route of translations has no streams"
    assert server.paths == {"/v1/audio/translations"}


def test_a_server_that_dies_is_6_with_what_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ChatServer("dies") as server:
        code, rows = verify(server, tmp_path)
    assert code == 6 and rows["reference"]["verdict"] == "not checked"
    assert "connection lost" in capsys.readouterr().err


def test_markdown_and_junit_have_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markdown, junit = tmp_path / "verify.md", tmp_path / "verify.xml"
    with ChatServer("wrong usage", "refuses seed") as server:
        code, _ = verify(server, tmp_path, "--markdown", str(markdown), "--junit", str(junit))
    assert code == 5
    assert "| limits | text | different |" in markdown.read_text()
    text = junit.read_text()
    assert 'failures="1"' in text and "usage.completion_tokens is wrong" in text and "`seed` is not supported" in text
    assert "usage.completion_tokens is wrong" in capsys.readouterr().out


def test_a_key_is_not_recorded(tmp_path: Path) -> None:
    with ChatServer() as server:
        code, _ = verify(server, tmp_path, "--api-key", "sk-secret")
    assert code == 0 and "sk-secret" not in (tmp_path / "verify.json").read_text()
