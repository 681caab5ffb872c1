"""`--against GIT_REF` on real repositories: the files of a commit, and refs that cannot be measured."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.commits import add_entry_points, checked_out, find_commit, find_worker

WORKER = Path("omni_cli/measure/bench/variant_worker.py")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, `old` without a worker and `new` with one, and a change that is in neither."""
    git(tmp_path, "init", "--initial-branch=main")
    (tmp_path / "README").write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "old")
    git(tmp_path, "tag", "old")
    (tmp_path / WORKER).parent.mkdir(parents=True)
    (tmp_path / WORKER).write_text("committed")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "new")
    git(tmp_path, "tag", "new")
    (tmp_path / WORKER).write_text("changed since")
    return tmp_path


def test_the_files_of_a_commit_in_a_temporary_folder(repository: Path) -> None:
    commit = find_commit("new", repository)
    assert commit[0] == repository and len(commit[1]) == 40
    with checked_out(*commit) as folder:
        assert (folder / WORKER).read_text() == "committed"
    assert not folder.exists()
    assert (repository / WORKER).read_text() == "changed since", "the clone itself is left alone"
    assert not (repository / ".git/worktrees").exists()


def test_a_commit_has_its_own_worker_and_entry_points(tmp_path: Path) -> None:
    earlier = tmp_path / "omni_cli/bench/variant_worker.py"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "omni-cli"\n[project.entry-points.a]\nb = "c:d"\n')
    add_entry_points(tmp_path)
    assert find_worker(tmp_path) == "omni_cli.bench.variant_worker"
    assert find_worker(None) == ".".join(WORKER.with_suffix("").parts)
    (found,) = metadata.distributions(path=[str(tmp_path)])
    assert [(point.group, point.name, point.value) for point in found.entry_points] == [("a", "b", "c:d")]


def test_an_interrupt_removes_the_folder_as_well(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checked_out(*find_commit("new", repository)) as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("nothing", "`nothing` is not a commit"),
        ("old", "cannot be measured"),
        ("--all", "is not a commit"),
        ("", "not a commit"),
    ],
)
def test_refs_that_cannot_be_measured(repository: Path, ref: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_commit(ref, repository)


def test_an_omni_outside_a_clone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only if omni runs from a clone") as raised:
        find_commit("main", tmp_path)
    assert "--baseline" in raised.value.hint
