"""One real measurement and one real profile, made once for all tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.omni_process import Ended

import omni_cli

ROOT = Path(omni_cli.__file__).parents[1]
TIMEOUT_S = 240
# From the first block on, because nothing is measured while the variants load.
BUSY = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
while True:
    pass
"""


@dataclass(frozen=True)
class Made:
    """A command's files and its stderr."""

    path: Path
    stderr: str


def omni(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "omni_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


@pytest.fixture(scope="session")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A benchmark on one thread beside a program that is always busy."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY, str(path)])
    try:
        result = omni(
            "bench", "-p", "tiny-image", "--vary", "num_inference_steps=2,2", "--num-iters", "48",
            "--time-budget", "6", "--max-regression", "20%", "--output-json", str(path),
        )  # fmt: skip
    finally:
        neighbour.kill()
        neighbour.wait()
    assert path.exists(), result.stderr
    return Made(path, result.stderr)


@pytest.fixture(scope="session")
def profiled(planted_profile: tuple[Path, Ended]) -> Made:
    folder, ended = planted_profile
    return Made(folder / "out" / "profile" / "profile.json", ended.err)
