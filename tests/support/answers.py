"""Answers of scripts in tests/support, which run engines that need a separate process with its own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import omni_cli

ROOT = Path(omni_cli.__file__).parents[1]


def answer_of(
    script: str, task: Mapping[str, Any], folder: Path, *, timeout_s: float = 240, **environment: str
) -> dict[str, Any]:
    """Give `tests/support/SCRIPT.py` a task as JSON; `folder` is where it writes its answer, as JSON."""
    answer = folder / "answer.json"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / f"{script}.py"), str(answer)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        # Two processes of one test share its cores: threads that wait must not spin.
        env={**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    content: dict[str, Any] = json.loads(answer.read_text())
    return content
