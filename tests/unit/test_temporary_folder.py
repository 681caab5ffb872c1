"""The folder of sockets if the folder for temporary files has a long name, and folders that never stay."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_cli.core import files as module
from omni_cli.core.errors import OmniError
from omni_cli.core.files import scratch_folder, temporary_folder


def test_the_usual_folder_while_names_in_it_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 76)
    assert temporary_folder(30) == "/" + "x" * 76
    assert temporary_folder(31) == "/tmp"


def test_no_folder_with_a_short_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 100)
    monkeypatch.setattr(module, "_SHORT_FOLDER", str(tmp_path / "missing"))
    with pytest.raises(OmniError, match="too long for sockets") as raised:
        temporary_folder(31)
    assert raised.value.hint == "set TMPDIR to a folder with a name of at most 76 bytes"


def test_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/a', '/b']")

    monkeypatch.setattr(tempfile, "gettempdir", fails)
    with pytest.raises(OmniError, match=r"cannot write temporary files: No usable .* in \['/a', '/b'\]"):
        temporary_folder(0)


def test_a_scratch_folder_is_removed_or_was_renamed(tmp_path: Path) -> None:
    with scratch_folder("omni-", tmp_path) as folder:
        (folder / "in it").mkdir()
        assert folder.parent == tmp_path
        with scratch_folder("omni-", tmp_path) as other:
            other.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


KILLED = """
import sys, time
from pathlib import Path
from omni_cli.core.files import scratch_folder
with scratch_folder("omni-", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print(flush=True)
    time.sleep(60)
"""


def test_a_scratch_folder_does_not_outlive_a_killed_process(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        assert len(list(tmp_path.glob("omni-*/file"))) == 1
        os.killpg(process.pid, signal.SIGKILL)  # as `timeout` and service managers do it
    wait_until(lambda: not any(tmp_path.iterdir()))


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
