"""The commits of a range, and a worktree of each in a cache folder: the user's own working tree is never touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import omni_cli
from omni_cli.core.child_python import users_environment
from omni_cli.core.errors import OmniError, UsageError
from omni_cli.core.files import scratch_folder
from omni_cli.core.text import visible

_SEPARATOR = "\x1f"
_FORMAT = "--format=%H%x1f%an%x1f%as%x1f%s"
_MAX_REASON = 300

# In this omni, and in commits before 0.6.0.
_WORKERS = ("omni_cli/measure/bench/variant_worker.py", "omni_cli/bench/variant_worker.py")


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A commit, with what readers want to know about it."""

    sha: str
    author: str
    date: str
    subject: str

    @property
    def short_sha(self) -> str:
        return self.sha[:12]


class BuildError(OmniError):
    """A commit that cannot be checked out or built."""


def get_repository(folder: Path) -> Path:
    """Return the root of the repository of a folder. Raises `UsageError`."""
    top_level = run_git(folder, "rev-parse", "--show-toplevel")
    if top_level.returncode:
        raise UsageError(f"`{visible(str(folder))}` is not in a git repository", hint="change to the project's folder")
    return Path(os.fsdecode(top_level.stdout).strip())


def resolve_commit(repository: Path, ref: str) -> str:
    """Return the hash of a commit. Raises `UsageError`."""
    parsed = run_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if parsed.returncode:
        message = f"`{visible(ref, 80)}` is not a commit of {repository}"
        raise UsageError(message, hint="fetch it first: `git fetch origin main`")
    return parsed.stdout.decode().strip()


def commits_between(repository: Path, good: str, bad: str) -> tuple[CommitInfo, ...]:
    """Return the good commit and those after it up to the bad one, along the first parents of merges.

    Raises `UsageError` unless `good` comes before `bad`.
    """
    first, last = resolve_commit(repository, good), resolve_commit(repository, bad)
    names = f"`{visible(good, 80)}`", f"`{visible(bad, 80)}`"
    if first == last:
        raise UsageError(f"{names[0]} and {names[1]} are the same commit", hint="there is nothing to search between")
    if run_git(repository, "merge-base", "--is-ancestor", first, last).returncode:
        is_reversed = not run_git(repository, "merge-base", "--is-ancestor", last, first).returncode
        hint = f"swap them: `omni bisect {bad} {good}`" if is_reversed else "name an ancestor: `git merge-base A B`"
        raise UsageError(f"{names[0]} is not an ancestor of {names[1]}", hint=hint)
    listed = run_git(repository, "log", "--reverse", "--first-parent", _FORMAT, f"{first}..{last}")
    itself = run_git(repository, "log", "--max-count=1", _FORMAT, first)
    lines = (itself.stdout + listed.stdout).decode(errors="replace").split("\n")
    fields = [line.split(_SEPARATOR, 3) for line in lines if line]
    return tuple(CommitInfo(sha=sha, author=a, date=d, subject=s) for sha, a, d, s in fields)


@dataclass(frozen=True)
class Worktrees:
    """Worktrees of commits below `folder`, built once with the shell command `build` and kept."""

    repository: Path
    folder: Path
    build: str | None = None

    async def provide(self, commit: CommitInfo) -> Path:
        """Return the commit's files, built. Raises `BuildError`."""
        path = self.folder / commit.short_sha
        mark = self.folder / f"{commit.short_sha}.built"
        if path.is_dir() and mark.is_file():
            return path
        # A leftover of a command that was killed is neither complete nor known to be built.
        run_git(self.repository, "worktree", "remove", "--force", "--force", str(path))
        shutil.rmtree(path, ignore_errors=True)
        run_git(self.repository, "worktree", "prune")
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not `run_git`: Ctrl-C in a terminal would end git as well, and its failure look like one of the commit.
        add = shlex.join(["git", "worktree", "add", "--detach", str(path), commit.sha])
        code, out, err = await run_program(add, self.repository)
        if code:
            raise BuildError(f"cannot check out {commit.short_sha}: {last_line(err, out)}")
        if self.build is not None:
            code, out, err = await run_program(self.build, path)
            if code:
                raise BuildError(
                    f"{commit.short_sha}: `{visible(self.build, 80)}` ended with {code}: {last_line(err, out)}"
                )
        add_entry_points(path)
        mark.touch()
        return path


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises `OmniError` if there is no git."""
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True)
    except OSError as error:
        raise OmniError(f"cannot run git: {error.strerror}") from error


async def run_program(command: str, folder: Path, timeout_s: float | None = None) -> tuple[int, bytes, bytes]:
    """Run a shell command in a folder; return its exit code, stdout and stderr. Raises `TimeoutError`.

    All that it started is killed if it is cancelled or takes too long.
    """
    started = asyncio.ensure_future(
        asyncio.create_subprocess_shell(
            command,
            cwd=folder,
            env=users_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal goes to the command alone.
            start_new_session=True,
        )
    )
    try:
        # asyncio warns of an unknown process if it is cancelled while it starts one.
        process = await asyncio.shield(started)
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    finally:
        process = await started
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None  # it has ended
    return process.returncode, out, err


def last_line(*texts: bytes) -> str:
    """Return the last line that is not empty, of the first text that has one."""
    lines: Sequence[str] = ()
    for text in texts:
        lines = lines or text.decode(errors="replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()]
    return visible(lines[-1], _MAX_REASON) if lines else "no output"


def find_worker(code: Path | None) -> str:
    """Return the name of the worker's module in a commit's files; None: in this omni."""
    found = (path for path in _WORKERS if code is not None and (code / path).is_file())
    return next(found, _WORKERS[0]).removesuffix(".py").replace("/", ".")


def add_entry_points(code: Path) -> None:
    """Give omni's files at a commit the entry points of that commit: the installed ones may name other modules."""
    project = code / "pyproject.toml"
    if not (code / "omni_cli").is_dir() or not project.is_file():
        return
    groups = tomllib.loads(project.read_text())["project"].get("entry-points", {})
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items())])
        for group, points in groups.items()
    ]
    metadata = code / "omni_cli.egg-info"  # a name that git ignores
    metadata.mkdir(exist_ok=True)
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: omni-cli\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n\n".join(sections) + "\n")


def find_commit(ref: str, repository: Path | None = None) -> tuple[Path, str]:
    """Resolve `ref` in the clone that omni runs from; return the clone and the commit, whose code can be measured.

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
    if all(run_git(root, "cat-file", "-e", f"{commit}:{path}").returncode for path in _WORKERS):
        raise UsageError(
            f"commit `{visible(ref, 80)}` cannot be measured: its omni has no `{_WORKERS[0]}`",
            hint="name a newer commit",
        )
    return root, commit


@contextmanager
def checked_out(repository: Path, commit: str) -> Iterator[Path]:
    """Extract the commit's files into a temporary folder, which is removed at the end.

    From an archive, because `git worktree` leaves an entry in the clone if the command is killed.
    """
    with scratch_folder("omni-against-") as folder:
        archived = run_git(repository, "archive", "--format=tar", f"--output={folder / 'code.tar'}", commit)
        if archived.returncode:
            raise OmniError(f"cannot get the files of {commit[:12]}: {last_line(archived.stderr)}")
        with tarfile.open(folder / "code.tar") as archive:
            archive.extractall(folder / "code", filter="data")
        add_entry_points(folder / "code")
        yield folder / "code"
