"""`omni chat` on lines of a pipe or a file: each is read whole, and of an answer nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from support.chat_server import ChatServer
from support.omni_process import ROOT

SHORT = b"/set max_tokens 3\n"


def talk(server: ChatServer, folder: Path, lines: bytes, *, as_file: bool = False) -> tuple[str, str]:
    """Return what it says on stdout and on stderr."""
    command = [sys.executable, "-m", "omni_cli", "chat", "-q", "--url", server.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    path = folder / "lines.txt"
    path.write_bytes(lines)
    with path.open("rb") as file:
        source: dict[str, IO[bytes] | bytes] = {"stdin": file} if as_file else {"input": lines}
        ended = subprocess.run(command, capture_output=True, cwd=folder, env=environment, timeout=60, **source)  # type: ignore[call-overload]
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.decode(), ended.stderr.decode()


def saved(folder: Path) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = json.loads((folder / "talk.json").read_text())["messages"]
    return messages


@pytest.mark.parametrize("as_file", [False, True])
def test_a_long_line_and_one_that_is_not_utf_8_are_messages(tmp_path: Path, as_file: bool) -> None:
    long, last = "word " * 40_000, "without an end"
    lines = SHORT + long.encode() + b"\n\xff bytes\r\n/save talk.json\n" + last.encode()
    with ChatServer() as server:
        said, _ = talk(server, tmp_path, lines, as_file=as_file)
    asked = [message["content"] for message in saved(tmp_path) if message["role"] == "user"]
    assert asked == [long.strip(), "\ufffd bytes"] and said.count("\n") == 3


def test_calls_and_refusals_are_shown_and_kept(tmp_path: Path) -> None:
    lines = SHORT + b"hello\n/save talk.json\n"
    with ChatServer("calls a function") as server:
        said, _ = talk(server, tmp_path, lines)
    function = {"name": "look", "arguments": '{"at": 1}'}
    call = {"id": "call-1", "type": "function", "function": function}
    assert said == 'look({"at": 1})\n' and saved(tmp_path)[1]["tool_calls"] == [call]
    with ChatServer("declines") as server:
        said, _ = talk(server, tmp_path, lines)
    assert said == "hm I will not.\n" and saved(tmp_path)[1]["refusal"] == "I will not."


def test_fields_of_the_conversation_itself_cannot_be_set(tmp_path: Path) -> None:
    with ChatServer() as server:
        said, errors = talk(server, tmp_path, SHORT + b"/set n 2\n/set messages []\n/set stream false\nhello\n")
    assert said.count("\n") == 1
    for name in ("n", "messages", "stream"):
        assert f"error: `{name}` cannot be set" in errors
