"""`mps: true` against a control program that notes what it is asked; `tests/gpu` has the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine.devices import check_devices
from omni_cli.engine.mps import PIPES, MpsServer, mps_effect
from omni_cli.errors import StageError, UsageError

CONTROL = """#!/bin/sh
# Started with -d, else asked something on stdin. Its server's number is 7, and its clients are in a file.
cd "$(dirname "$0")"
if [ "$1" = -d ]; then
    echo "start ${CUDA_VISIBLE_DEVICES-all} $CUDA_MPS_PIPE_DIRECTORY" >>asked
    [ ! -e broken ]
    exit
fi
read -r question
echo "$question" >>asked
case "$question" in get_server_list) echo 7;; "get_client_list 7") cat clients;; esac
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the control program, which is the first in PATH."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    (tmp_path / "clients").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv(PIPES, raising=False)
    return tmp_path


def asked(control: Path) -> list[str]:
    return (control / "asked").read_text().splitlines()


def test_a_server_runs_for_the_engine_only_and_numbers_all_devices(control: Path):
    server = MpsServer()
    server.start()
    folder = os.environ[PIPES]
    assert Path(folder).is_dir() and asked(control) == [f"start all {folder}"]
    server.stop()
    server.stop()
    assert PIPES not in os.environ and not Path(folder).exists() and asked(control)[1:] == ["quit"]


def test_the_server_of_a_killed_command_is_ended(control: Path):
    code = "from omni_cli.engine.mps import MpsServer; s = MpsServer(); s.start(); print(flush=True); input()"
    command = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    command.stdout.readline()
    command.send_signal(signal.SIGKILL)
    command.communicate()
    until_s = time.monotonic() + 20
    while asked(control)[-1] != "quit" and time.monotonic() < until_s:
        time.sleep(0.05)
    assert asked(control)[-1] == "quit"


def test_a_server_of_the_user_is_used_and_left(control: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PIPES, "/theirs")
    server = MpsServer()
    server.start()
    server.stop()
    assert os.environ[PIPES] == "/theirs" and not (control / "asked").exists()


def test_a_stage_tells_whether_it_is_a_client(control: Path, monkeypatch: pytest.MonkeyPatch):
    assert mps_effect("thinker", required=False) == {}
    monkeypatch.setenv(PIPES, "/theirs")
    (control / "clients").write_text("1 999999999\n")
    assert mps_effect("thinker", required=False) == {"mps": False}
    with pytest.raises(StageError, match="stage `thinker` is not a client of the server"):
        mps_effect("thinker", required=True)
    # A rank of the stage is in its group.
    (control / "clients").write_text(f"999999999\n{os.getpid()}\n")
    assert mps_effect("thinker", required=True) == {"mps": True}


def test_what_cannot_start_is_an_error_and_leaves_nothing(control: Path, monkeypatch: pytest.MonkeyPatch):
    (control / "broken").touch()
    with pytest.raises(UsageError, match="`nvidia-cuda-mps-control` did not start"):
        MpsServer().start()
    assert PIPES not in os.environ and not Path(asked(control)[0].split()[-1]).exists()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="which is not installed here"):
        MpsServer().start()


def test_it_needs_a_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="`mps: true` needs a CUDA device"):
        check_devices(load_profile("tiny-omni", ["mps=true"]))
