"""`omni bisect` on a real history of this project, one commit of which plants a slowdown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.omni_process import ROOT

PIPELINE = Path("omni_cli/diffusers_integration/pipeline_run.py")
NOTED = "        def note_step() -> None:\n"
SUBJECTS = ("Note 1", "Note 2", "Rename a helper", "Break the pipeline", "Note 3", "Note 4")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    return subprocess.check_output(["git", "-C", str(folder), *identity, *arguments], text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this project and the commits of `SUBJECTS`: the third sleeps in each step, the fourth cannot be
    imported."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    source = (folder / PIPELINE).read_text()
    assert source.count(NOTED) == 1
    slow = source.replace(NOTED, f"{NOTED}            import time\n\n            time.sleep(0.02)\n")
    for number, subject in enumerate(SUBJECTS):
        (folder / "NOTES.md").write_text(f"{subject}\n")
        (folder / PIPELINE).write_text(source if number < 2 else "import missing\n" if number == 3 else slow)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", subject)
    return folder


@pytest.mark.nightly
def test_a_planted_slowdown_is_found_in_this_project(clone: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
    arguments = ["HEAD~6", "HEAD", "--profile", "tiny-image", "--num-iters-warmup", "2", "--max-regression", "10%"]
    command = [sys.executable, "-P", "-m", "omni_cli", "bisect", *arguments, "--cache-dir", str(tmp_path / "cache")]
    ended = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert ended.returncode == 1, ended.stderr
    found = json.loads(ended.stdout)
    assert [commit["subject"] for commit in found["result"]["commits"]] == ["Rename a helper"]
    assert found["result"]["change"] > 0.1 and found["result"]["confidence"] >= 0.95
    assert [trial["verdict"] for trial in found["trials"] if trial["b"] == 4] in ([], ["failed"])
    assert git(clone, "status", "--porcelain") == "" and git(clone, "rev-parse", "--abbrev-ref", "HEAD") != "HEAD\n"
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 1 and "Rename a helper\n  Ada, " in again.stdout, again.stderr
    print(again.stdout)  # noqa: T201 - shown by `pytest -s`, and in docs/commands/bisect.md
