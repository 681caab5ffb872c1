"""`omni chat` with a running server, through a pipe and in a terminal, and with an engine of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.omni_process import ROOT, SHORT, run_omni
from support.omni_server import OmniServer

from omni_cli.requests.encoding import encode_png

PATIENCE_S = 60


def piped(omni: OmniServer, folder: Path, *lines: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_cli", "chat", "--url", omni.url, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, cwd=folder,
        env=environment, timeout=PATIENCE_S,
    )  # fmt: skip


def test_lines_of_a_pipe_are_messages_of_one_conversation(omni: OmniServer, tmp_path: Path, image: object) -> None:
    (tmp_path / "image.png").write_bytes(encode_png(image))  # type: ignore[arg-type]
    lines = ["/set max_tokens 8", "/set temperature 0", "hello", "/image image.png", "and this", "/save talk.json"]
    ended = piped(omni, tmp_path, *lines, words=("--system", "Be brief."))
    assert ended.returncode == 0, ended.stderr
    saved = json.loads((tmp_path / "talk.json").read_text())
    roles = [message["role"] for message in saved["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    answers = [message["content"] for message in saved["messages"] if message["role"] == "assistant"]
    assert ended.stdout == "".join(f"{answer}\n" for answer in answers)
    assert saved["messages"][3]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    asked = {"messages": saved["messages"][:4], "max_tokens": 8, "temperature": 0}
    assert (
        omni.request("POST", "/v1/chat/completions", asked).document["choices"][0]["message"]["content"] == answers[1]
    )
    assert "cut at its maximum of tokens" in ended.stderr and "TTFT" in ended.stderr


def test_speech_is_written(omni: OmniServer, tmp_path: Path) -> None:
    ended = piped(
        omni, tmp_path, "/speech on", "/set max_tokens 8", "hello", "/speech off", "hello", words=("-q", "-o", "said")
    )
    assert ended.returncode == 0 and ended.stderr.count("audio\n") == 1
    with wave.open(str(tmp_path / "said" / "0.wav")) as file:
        assert file.getframerate() == 24_000 and file.getnframes() > 0


def test_a_mistake_is_said_and_the_conversation_goes_on(omni: OmniServer, tmp_path: Path) -> None:
    lines = [
        "/sett x",
        "/image none.png",
        "/set colour blue",
        "hello",
        "/set colour null",
        "/set max_tokens 4",
        "hello",
    ]
    ended = piped(omni, tmp_path, *lines, "/save talk.json")
    assert ended.returncode == 0
    for sentence in ("did you mean `/set`?", "cannot open the image file `none.png`", "unknown field `colour`"):
        assert sentence in ended.stderr
    assert len(json.loads((tmp_path / "talk.json").read_text())["messages"]) == 2, "a refused message is taken back"


def test_a_closed_pipe_ends_it_quietly(omni: OmniServer, tmp_path: Path) -> None:
    command = f"printf 'hello\\nhello\\n' | {sys.executable} -m omni_cli chat --url {omni.url} -q | head -c 1"
    shell = ["bash", "-o", "pipefail", "-c", command]
    ended = subprocess.run(
        shell, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (141, "")


def test_profiles_that_do_not_talk_and_options_without_effect(omni: OmniServer, tmp_path: Path) -> None:
    run_omni(tmp_path, "chat", "--profile", "tiny-image").check_error(2, "does not answer with text")
    ended = piped(omni, tmp_path, words=("--set", "seed=1"))
    assert ended.returncode == 2 and "`--set` has no effect with `--url`" in ended.stderr


@contextmanager
def terminal(folder: Path, *words: str) -> Iterator[Screen]:
    """`omni chat` in a terminal of its own."""
    pid, descriptor = pty.fork()
    if not pid:
        os.chdir(folder)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_STATE_HOME": str(folder),
        }
        os.execve(sys.executable, [sys.executable, "-m", "omni_cli", "chat", *words], environment)
    try:
        yield Screen(pid, descriptor)
    finally:
        os.close(descriptor)


class Screen:
    """The text of a terminal, without its escape codes."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.text = ""
        self._descriptor = descriptor

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Read until `pattern` follows what was waited for before."""
        until = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < until, self.text[-2000:]
            if select.select([self._descriptor], [], [], 0.2)[0]:
                new = os.read(self._descriptor, 65536).decode(errors="replace")
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", new)
        self.text = self.text[found.end() :]

    def exit_code(self) -> int:
        until = time.monotonic() + PATIENCE_S
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < until
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    os.read(self._descriptor, 65536)
                except OSError:  # closed by the other end
                    time.sleep(0.1)
        return os.waitstatus_to_exitcode(ended[1])


def test_in_a_terminal_control_c_stops_an_answer_and_control_d_leaves(omni: OmniServer, tmp_path: Path) -> None:
    with terminal(tmp_path, "--url", omni.url) as screen:
        screen.wait_for("Ctrl-D leaves")
        screen.wait_for(">")
        screen.type("/set ignore_eos true\r")
        screen.wait_for("ignore_eos = true")
        screen.type("/set max_tokens 1500\r")
        screen.wait_for("max_tokens = 1500")
        screen.type("talk at length\r")
        screen.wait_for(r"length[\s\S]{600}")  # more than the echo and the prompt's padding
        screen.type("\x03")
        screen.wait_for("stopped")
        screen.wait_for(">")
        screen.type("\x03")  # at the prompt it clears the line
        screen.type("/set max_tokens 4\r")
        screen.wait_for("max_tokens = 4")
        screen.type("and now\r")
        screen.wait_for("4 tokens")
        screen.wait_for(">")
        screen.type("\x04")
        assert screen.exit_code() == 0
    history = (tmp_path / "omni" / "chat_history").read_text()
    assert "+talk at length" in history and oct((tmp_path / "omni" / "chat_history").stat().st_mode)[-3:] == "600"


def test_a_signal_ends_it_at_the_prompt(omni: OmniServer, tmp_path: Path) -> None:
    with terminal(tmp_path, "--url", omni.url) as screen:
        screen.wait_for(">")
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.exit_code() == 130


def test_it_runs_a_profile_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    """An engine of its own: that it ends with the input, and whoever else is on the machine cannot use it."""
    lines = "/set temperature 1\nhello\n/reset\nhello\n/quit\n"
    ended = run_omni(tmp_path, "chat", *SHORT, "--set", "seed=5", input_text=lines)
    ended.check_clean()
    assert ended.code == 0 and "tiny-omni at http://127.0.0.1:" in ended.err
    first, second = ended.out.splitlines()
    assert first == second, "the seed of the profile is that of every answer"
