"""The code of another commit in a temporary folder, for `--against`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import omni_cli
from omni_cli.bench.commits import last_line, resolve_commit, run_git
from omni_cli.errors import OmniError, UsageError
from omni_cli.temporary_folder import scratch_folder
from omni_cli.text import visible

_WORKER = "omni_cli/bench/variant_worker.py"


@dataclass(frozen=True)
class Commit:
    """A commit whose code can be measured."""

    ref: str
    commit: str
    repository: Path


def find_commit(ref: str, repository: Path | None = None) -> Commit:
    """Resolve `ref` in the clone that omni runs from.

    Raises `UsageError` if omni does not run from a clone, there is no such commit, or it is too old to be
    measured.
    """
    root = repository or Path(omni_cli.__file__).parents[1]
    if not (root / ".git").exists():
        raise UsageError(
            "another commit can be measured only if omni runs from a clone of its repository; this one is installed",
            hint="run it from a clone, or save a record with `omni bench --output-json` and use `--baseline`",
        )
    commit = resolve_commit(root, ref)
    if run_git(root, "cat-file", "-e", f"{commit}:{_WORKER}").returncode:
        raise UsageError(
            f"commit `{visible(ref, 80)}` cannot be measured: its omni has no `{_WORKER}`", hint="name a newer commit"
        )
    return Commit(ref, commit, root)


@contextmanager
def checked_out(commit: Commit) -> Iterator[Path]:
    """Extract the commit's files into a temporary folder, which is removed at the end.

    From an archive, because `git worktree` leaves an entry in the clone if the command is killed.
    """
    with scratch_folder("omni-against-") as folder:
        archived = run_git(
            commit.repository, "archive", "--format=tar", f"--output={folder / 'code.tar'}", commit.commit
        )
        if archived.returncode:
            raise OmniError(f"cannot get the files of {commit.commit[:12]}: {last_line(archived.stderr)}")
        with tarfile.open(folder / "code.tar") as archive:
            archive.extractall(folder / "code", filter="data")
        yield folder / "code"
