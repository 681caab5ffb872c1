"""Early ends of `omni generate`: signals, and a reader that closes the pipe.

Each command is a process of its own around a scripted engine (`fake_engine.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import omni_cli

pytestmark = pytest.mark.slow


FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
ROOT = Path(omni_cli.__file__).parents[1]


class Process:
    """The command in a process of its own; `log` is what the engine announces."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        environment = {**os.environ, "FAKE_ENGINE_LOG": str(self.log), "PYTHONPATH": str(ROOT)}
        self.popen = subprocess.Popen(
            [sys.executable, str(FAKE_ENGINE), "generate", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + 30
        while not (self.log.exists() and word in self.log.read_text().split()):
            assert time.monotonic() < deadline and self.popen.poll() is None, f"never {word}"
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=30)
        return self.popen.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_finished_requests(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "r.jsonl").write_text('{"prompt": "one"}\n{"prompt": "late stall"}\n')
    process = Process(tmp_path, "--requests", "r.jsonl", "--json")
    process.wait_for("stalled")
    process.popen.send_signal(number)
    code, out, err = process.end()
    assert (code, err) == (130, "error: interrupted\n")
    first, second = json.loads(out)["results"]
    assert (first["status"], second["status"], second["message"]) == ("ok", "error", "interrupted")
    assert process.log.read_text().split()[-1] == "closed"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0.wav"]


def test_a_signal_while_loading(tmp_path: Path) -> None:
    process = Process(tmp_path, "hello", "--profile", "tiny-omni", "--model", "stall_start")
    process.wait_for("loading")
    process.popen.send_signal(signal.SIGINT)
    assert process.end() == (130, "", "error: interrupted\n")
    assert process.log.read_text().split() == ["loading", "closed"]


def test_a_second_signal_kills_even_if_closing_hangs(tmp_path: Path) -> None:
    process = Process(tmp_path, "hello stall", "--profile", "tiny-omni", "--model", "stall_close")
    process.wait_for("stalled")
    process.popen.send_signal(signal.SIGINT)
    process.wait_for("closing")
    children = psutil.Process(process.popen.pid).children()
    assert len(children) == 1
    time.sleep(0.6)  # a second signal within half a second counts as the first one's echo
    process.popen.send_signal(signal.SIGINT)
    assert process.end()[0] == 130
    assert "closed" not in process.log.read_text().split()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_an_echo_of_the_signal_is_not_a_second_one(tmp_path: Path) -> None:
    process = Process(tmp_path, "hello stall")
    process.wait_for("stalled")
    # Stopped, it finds both signals at once, whatever else the machine does.
    process.popen.send_signal(signal.SIGSTOP)
    while psutil.Process(process.popen.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.popen.send_signal(number)
    assert process.end()[0] == 130
    assert process.log.read_text().split()[-1] == "closed"


def test_a_reader_that_closes_the_pipe(tmp_path: Path) -> None:
    process = Process(tmp_path, "hello stall")
    process.popen.stdout.close()
    process.popen.stdout = None
    code, _, err = process.end()
    assert "Traceback" not in err and code == 141
    assert process.log.read_text().split()[-1] == "closed"
