"""Answers of modules in tests/support, whose engines need a separate process with its own environment."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.engine.process.fork_server import ForkServer
from support import reaper

SUPPORT = Path(__file__).parent


@functools.cache
def forked() -> ForkServerContext:
    """Processes with the slow imports done, which take as long as most tests: made once, until the test runner ends.

    Engines that the test runner starts come from it, too.
    """
    server = ForkServer({"diffusers", "vllm"})
    server._preload.append("support.warm_libraries")
    # Python 3.11's fork server has no other way to the folder of that module.
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT.parent), *filter(None, [path])])
    os.environ[reaper.RUN] = reaper.NO_RUN
    try:
        return server.start()
    finally:
        del os.environ[reaper.RUN], os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path


def answer_of(
    name: str, task: Mapping[str, Any], folder: Path, *, timeout_s: float = 240, **environment: str
) -> dict[str, Any]:
    """Return what `answer(**task)` in `tests/support/NAME.py` returns; both go through JSON files in `folder`."""
    answer, asked, log = (folder / name for name in ("answer.json", "task.json", "log.txt"))
    asked.write_text(json.dumps(task))
    process = forked().Process(target=_run, args=(name, asked, answer, log, {**os.environ, **environment}))
    process.start()
    process.join(timeout_s)
    if process.exitcode != 0:
        process.kill()
    assert process.exitcode == 0, log.read_text()[-4000:] if log.exists() else "it never began"
    content: dict[str, Any] = json.loads(answer.read_text())
    return content


def _run(name: str, task: Path, answer: Path, log: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(written, number)
    sys.path.insert(0, str(SUPPORT))  # of workers, which import one module by its own name
    prepare_libraries()
    # At its end vLLM makes garbage collection look at the imports again, and collects twice: half of a short engine's
    # time. Stages of ours end without.
    gc.unfreeze = lambda: None
    module = importlib.import_module(f"support.{name}")
    answer.write_text(json.dumps(module.answer(**json.loads(task.read_text()))))
