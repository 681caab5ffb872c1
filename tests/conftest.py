"""Nothing that a test starts outlives the test runner, and no thread of it spins."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support import reaper

# OpenMP's threads otherwise spin while they wait for each other, and keep the very ones they wait for from the cores:
# in models that a test runs itself as in the engine (`engine/process/fork_server.py`). Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Files that use one of these run on one worker, so that each server and engine is started once; so does each file.
SHARED = ("start_session_engine", "start_session_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups = {item.path: item.nodeid.partition("::")[0] for item in items}
    for shared in SHARED:
        groups |= {item.path: shared for item in items if shared in getattr(item, "fixturenames", ())}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))


@pytest.fixture(scope="session", autouse=True)
def _reaper() -> None:
    mark = uuid.uuid4().hex
    # Itself it must not be marked: it would end itself.
    subprocess.Popen(
        [sys.executable, "-ISs", str(Path(reaper.__file__)), str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != reaper.VARIABLE},
    )
    os.environ[reaper.VARIABLE] = mark
