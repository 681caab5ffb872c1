"""A test runner that is killed leaves nothing behind: no server, no engine, no stage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.omni_process import GONE_WITHIN_S, ROOT, TIMEOUT_S
from support.reaper import marked

VARIABLE = "OMNI_TEST_KILLED_RUNNER"
TESTS = Path(__file__).parents[1]
# The fixtures of this folder, for a test that never ends.
NEVER_ENDS = f"""
import importlib.util, pathlib, time
from support.omni_server import OmniServer

spec = importlib.util.spec_from_file_location("fixtures", {str(TESTS / "integration" / "conftest.py")!r})
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
start_engine = fixtures.start_engine

def test_that_is_killed(start_engine, tmp_path_factory):
    server = OmniServer(tmp_path_factory.mktemp("server"), "--profile", "tiny-image")
    start_engine("tiny-image")
    pathlib.Path("ready").write_text(str(server.process.pid))
    time.sleep({TIMEOUT_S})
"""


@pytest.mark.nightly
def test_a_killed_runner_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_never_ends.py").write_text(NEVER_ENDS)
    mark = uuid.uuid4().hex
    words = ("-q", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", ".", "--basetemp", "base", "--capture=no")
    runner = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, "test_never_ends.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", VARIABLE: mark},
    )
    ready = tmp_path / "ready"
    deadline = time.monotonic() + TIMEOUT_S
    while not (ready.exists() and ready.read_text()):
        assert runner.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    # The runner, the server, and one stage each of the server and of the runner.
    assert int(ready.read_text()) in marked(VARIABLE, mark) and len(marked(VARIABLE, mark)) >= 4
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := marked(VARIABLE, mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
