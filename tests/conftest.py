"""Nothing that a test starts outlives the test runner, and no thread of it spins."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support import reaper

# OpenMP's threads otherwise spin while they wait for each other, and keep the very ones they wait for from the cores:
# in models that a test runs itself as in the engine (`engine/process/fork_server.py`). Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A hundred processes would compile the same sources, where an image says that caches are useless in it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# In the background of a script (`make test &`) Ctrl-C is ignored, and SIGHUP below `nohup`, in its processes too.
# A handler is not inherited: what tests start begins with the default one, and the test runner goes on.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# No test asserts a time: on a busy machine an example may take any.
settings.register_profile("omni", deadline=None)
settings.load_profile("omni")

# Files that share a server or an engine, by the end of their names; each group runs on one worker.
TOGETHER = (
    ("/report/test_page.py", "/report/test_utilisation.py", "/profiling/test_profile_command.py"),
    ("/test_chain.py", "/test_conversations.py", "/test_not_numbers.py", "/test_streaming.py"),
    tuple(
        f"/serve/test_{name}.py"
        for name in ("openai_client", "openapi", "refusals", "fuzz", "limits", "disconnect", "vllm_bench", "loadtest")
    ),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave what the tests' imports made out of garbage collection, as a fork server does: it lives as long anyway.

    Otherwise each collection, which pipelines ask for when they are closed, looks at a million objects.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or triton's bindings report what is left of them at the end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run a group of files like one file of xdist's `loadfile`.

    Its `loadgroup` has no effect with this pytest, in which a test's id cannot be changed.
    """
    from xdist.scheduler import LoadFileScheduling

    class SharedFiles(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((group[0] for group in TOGETHER if file.endswith(group)), file)

    return SharedFiles(config, log) if config.getoption("dist") == "loadfile" else None


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
