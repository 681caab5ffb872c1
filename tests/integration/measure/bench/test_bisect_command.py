"""`omni bisect` on a history of this project, one commit of which plants a slowdown, more memory or other images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.omni_process import ROOT

pytestmark = pytest.mark.nightly

PIPELINE = Path("omni_cli/backends/diffusers/pipeline_run.py")
NOTED = "        def note_step() -> None:\n"
MADE = "        num_requests = len(self.requests)\n"
SLOWER = (NOTED, f"{NOTED}            import time\n\n            time.sleep(0.02)\n")
LARGER = (NOTED, f"{NOTED}            self.held = b'x' * 2**28\n")
INVERTED = (MADE, f"        images = tuple(255 - image for image in images)\n{MADE}")
SUBJECTS = ("Note 1", "Note 2", "Rename a helper", "Break the pipeline", "Note 3", "Note 4")
BROKEN = 4


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    return subprocess.check_output(["git", "-C", str(folder), *identity, *arguments], text=True)


def clone_with(planted: tuple[str, str], folder: Path) -> Path:
    """Clone this project and add `SUBJECTS`: the third commit plants a change, the fourth cannot be imported."""
    clone = folder / "clone"
    git(folder, "clone", "--quiet", "--shared", str(ROOT), str(clone))
    source = (clone / PIPELINE).read_text()
    assert source.count(planted[0]) == 1
    changed = source.replace(*planted)
    for number, subject in enumerate(SUBJECTS, start=1):
        (clone / "NOTES.md").write_text(f"{subject}\n")
        (clone / PIPELINE).write_text(source if number < 3 else "import missing\n" if number == BROKEN else changed)
        git(clone, "add", ".")
        git(clone, "commit", "--quiet", "--message", subject)
    return clone


def bisect(clone: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ("HEAD~6", "HEAD", "--profile", "tiny-image", "--num-iters-warmup", "2", *options)
    command = [sys.executable, "-P", "-m", "omni_cli", "bisect", *arguments, "--cache-dir", str(clone.parent / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=clone.parent, env=environment, capture_output=True, text=True, timeout=1800)


def named(ended: subprocess.CompletedProcess[str], clone: Path, code: int) -> dict[str, Any]:
    """Return the search's document after checking that it names the planted commit and left the clone alone."""
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert [commit["subject"] for commit in found["result"]["commits"]] == ["Rename a helper"]
    assert [trial["verdict"] for trial in found["trials"] if trial["b"] == BROKEN] in ([], ["failed"])
    assert git(clone, "status", "--porcelain") == "" and git(clone, "rev-parse", "--abbrev-ref", "HEAD") != "HEAD\n"
    return found


def test_a_planted_slowdown_is_found_in_this_project(tmp_path: Path) -> None:
    clone = clone_with(SLOWER, tmp_path)
    found = named(bisect(clone, "--max-regression", "10%", "--json"), clone, 1)
    assert found["result"]["change"] > 0.1 and found["result"]["confidence"] >= 0.95
    again = bisect(clone, "--max-regression", "10%")
    assert again.returncode == 1 and "Rename a helper\n  Ada, " in again.stdout, again.stderr
    print(again.stdout)  # noqa: T201 - shown by `pytest -s`, and in docs/commands/bisect.md


def test_the_commit_that_took_more_memory(tmp_path: Path) -> None:
    clone = clone_with(LARGER, tmp_path)
    found = named(bisect(clone, "--max-memory-regression", "10%", "--json"), clone, 1)
    assert found["result"]["change"] > 0.1
    assert {trial["verdict"] for trial in found["trials"]} <= {"regression", "pass", "failed"}


def test_the_commit_that_changed_the_outputs(tmp_path: Path) -> None:
    clone = clone_with(INVERTED, tmp_path)
    found = named(bisect(clone, "--require-identical-outputs", "--json"), clone, 5)
    assert {trial["verdict"] for trial in found["trials"]} <= {"output mismatch", "pass", "failed"}
    assert found["result"]["confidence"] is None  # equality is exact
