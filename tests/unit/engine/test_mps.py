"""`mps` against a control program that notes what it is asked; `tests/gpu` has the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from omni_cli.config.families import get_family
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import StageError, UsageError
from omni_cli.engine import mps
from omni_cli.engine.devices import check_devices
from omni_cli.engine.mps import PIPES, MpsServer, mps_effect
from omni_cli.stage.protocol import StageSpec

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
    monkeypatch.setattr(mps, "_FIRST_CLIENT", "")
    return tmp_path


def asked(control: Path) -> list[str]:
    return (control / "asked").read_text().splitlines()


def server(value: str = "true", profile: str = "tiny-omni") -> MpsServer:
    return MpsServer(load_profile(profile, [f"mps={value}"]))


def test_a_server_runs_for_the_engine_only_and_numbers_all_devices(control: Path):
    ours = server()
    ours.start()
    assert ours.folder is not None and Path(ours.folder).is_dir()
    assert asked(control) == [f"start all {ours.folder}"] and PIPES not in os.environ
    folder = ours.folder
    ours.stop()
    ours.stop()
    assert ours.folder is None and not Path(folder).exists() and asked(control)[1:] == ["quit"]


def test_the_server_of_a_killed_command_is_ended(control: Path):
    code = (
        "from omni_cli.config.loader import load_profile; from omni_cli.engine import mps; mps._FIRST_CLIENT = ''; "
        "s = mps.MpsServer(load_profile('tiny-omni', ['mps=true'])); s.start(); print(flush=True); input()"
    )
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
    theirs = server()
    theirs.start()
    theirs.stop()
    assert theirs.folder == os.environ[PIPES] == "/theirs" and not (control / "asked").exists()


@pytest.mark.parametrize(
    ("profile", "has_device", "starts"),
    [("tiny-omni", True, True), ("tiny-omni", False, False), ("tiny-image", True, False)],
    ids=["stages share a device", "no device", "one stage"],
)
def test_auto_is_for_stages_that_share_a_device(
    control: Path, monkeypatch: pytest.MonkeyPatch, profile: str, has_device: bool, starts: bool
):
    monkeypatch.setattr(mps, "has_cuda_device", lambda: has_device)
    ours = server("auto", profile)
    ours.start()
    assert (ours.folder is not None) == starts
    ours.stop()


def test_auto_is_not_for_stages_on_devices_of_their_own(control: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mps, "has_cuda_device", lambda: True)
    devices = [f"{stage}.devices='{number}'" for number, stage in enumerate(("thinker", "talker", "token2wav"))]
    ours = MpsServer(load_profile("tiny-omni", ["mps=auto", *devices]))
    ours.start()
    assert ours.folder is None


def test_a_stage_tells_whether_it_is_a_client(control: Path, monkeypatch: pytest.MonkeyPatch):
    family = get_family("Qwen2_5OmniModel")
    spec = StageSpec(ARStageConfig.create("thinker"), "folder", family, family.architectures[0], "float32", 0, False)
    assert mps_effect(spec) == {}
    assert mps_effect(replace(spec, mps="auto")) == {"mps": False}
    monkeypatch.setenv(PIPES, "/theirs")
    (control / "clients").write_text("1 999999999\n")
    assert mps_effect(spec) == mps_effect(replace(spec, mps="auto")) == {"mps": False}
    with pytest.raises(StageError, match="stage `thinker` is not a client of the server"):
        mps_effect(replace(spec, mps=True))
    # A rank of the stage is in its group.
    (control / "clients").write_text(f"999999999\n{os.getpid()}\n")
    assert mps_effect(replace(spec, mps=True)) == mps_effect(spec) == {"mps": True}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("broken", "`nvidia-cuda-mps-control` did not start"),
        ("client", "CUDA does not start as a client of the server: error 805"),
        ("silent client", "CUDA does not start as a client of the server: no answer in 0.2 s"),
        ("missing", "which is not installed here"),
    ],
)
def test_what_cannot_start_is_an_error_or_no_server_with_auto(
    control: Path, monkeypatch: pytest.MonkeyPatch, fault: str, error: str
):
    monkeypatch.setattr(mps, "has_cuda_device", lambda: True)
    if fault == "broken":
        (control / "broken").touch()
    elif fault == "client":
        monkeypatch.setattr(mps, "_FIRST_CLIENT", "raise SystemExit('error 805')")
    elif fault == "silent client":
        monkeypatch.setattr(mps, "_FIRST_CLIENT", "import time; time.sleep(60)")
        monkeypatch.setattr(mps, "_FIRST_CLIENT_S", 0.2)
    else:
        monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=error):
        server("true").start()
    other = server("auto")
    other.start()
    assert other.folder is None
    if fault != "missing":
        started = [line for line in asked(control) if line.startswith("start")]
        assert len(started) == 2 and not any(Path(line.split()[-1]).exists() for line in started)


def test_it_needs_a_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="`mps: true` needs a CUDA device"):
        check_devices(load_profile("tiny-omni", ["mps=true"]))
    check_devices(load_profile("tiny-omni", ["mps=auto"]))
