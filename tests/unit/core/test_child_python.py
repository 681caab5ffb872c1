"""A command and the Pythons below it keep the current folder off their module path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import omni_cli
from omni_cli.core import child_python

ROOT = Path(omni_cli.__file__).parents[1]
# Prints the module path of this process, of a Python that a library starts, and of one that the user's program starts.
SCRIPT = """
import subprocess, sys
from omni_cli.core.child_python import leave_out_current_folder, users_environment
leave_out_current_folder()
print(sys.path)
for environment in (None, users_environment()):
    print(subprocess.check_output([sys.executable, "-c", "import sys; print(sys.path)"], env=environment, text=True))
"""


def paths(folder: Path, **environment: str) -> list[list[str]]:
    """Return the three module paths of a Python in `folder`, which starts as `python -m` does."""
    (folder / "started.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": str(ROOT)} | environment
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "started"],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [eval(line) for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("python_path", [f"{ROOT}", f":{ROOT}", f"{ROOT}:"])
def test_the_current_folder_is_on_no_module_path(tmp_path: Path, python_path: str) -> None:
    here, child, users = paths(tmp_path, PYTHONPATH=python_path)
    for path in (here, child):
        assert "" not in path and str(tmp_path) not in path and str(ROOT) in path
    assert users[0] == "", "the user's own programs look where they always do"


def test_a_folder_that_is_named_stays_on_the_path(tmp_path: Path) -> None:
    here, child, _ = paths(tmp_path, PYTHONPATH=f"{ROOT}:.:")
    assert str(tmp_path) in here and str(tmp_path) in child
    here, _, users = paths(tmp_path, PYTHONSAFEPATH="1", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert str(tmp_path) in here and "" not in users, "that of the user's programs, too, is as the user set it"


def test_a_folder_that_was_removed_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "")
    before = list(sys.path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    child_python.leave_out_current_folder()
    monkeypatch.chdir(tmp_path)
    assert sys.path == before


def test_a_child_python_has_no_current_folder(tmp_path: Path) -> None:
    command = child_python.python_command("-c", "import sys; print('' in sys.path)")
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "False\n"
