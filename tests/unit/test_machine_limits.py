"""Errors of libraries that are about a limit of the machine name it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_cli.core import files
from omni_cli.core.errors import UsageError
from omni_cli.core.files import allow_open_files, known_failure

# A command that has opened all files that it may: nothing can be imported then.
WITHOUT_DESCRIPTORS = """
import resource
from omni_cli.cli import report
from omni_cli.cli.app import run

def open_all(*_):
    held = []
    while True:
        held.append(open("/dev/null"))

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
report._check_output = open_all
print(int(run(["report", "a.json", "-o", "page.html"])))
"""


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_open_files_are_allowed_as_far_as_the_system_does(limit: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    assert allow_open_files(300) == 300 and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
    assert allow_open_files(100) == 300, "it is not lowered"
    if hard != resource.RLIM_INFINITY:
        assert allow_open_files(hard + 1) == hard


def test_too_many_open_files_name_the_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for error in (OSError(errno.EMFILE, "Too many open files"), RuntimeError("ipc: Too many open files (src/x.cpp:1)")):
        failure = known_failure(error)
        assert failure is not None and failure.message == f"too many open files: the limit is {soft}"
        assert failure.hint is not None and "ulimit -n" in failure.hint


def test_a_command_without_descriptors_names_the_limit() -> None:
    words = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr.partition("\n")[0]) == ("6\n", "error: too many open files: the limit is 64")


def test_the_cause_of_an_error_counts() -> None:
    error = ValueError("no engine")
    error.__cause__ = RuntimeError("can't start new thread")
    failure = known_failure(error)
    assert failure is not None and "threads" in failure.message


def test_a_folder_that_the_error_names() -> None:
    failure = known_failure(OSError(errno.EROFS, "Read-only file system", "/read only/models/file"))
    assert failure is not None and failure.message == "cannot write to /read only/models: Read-only file system"
    assert failure.hint is not None and "`df -h '/read only/models'`" in failure.hint


def test_a_folder_that_the_error_does_not_name_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "_SHARED_MEMORY", str(tmp_path / "shm"))  # as unusable as a read-only one
    failure = known_failure(OSError(errno.EROFS, "Read-only file system"))
    assert failure is not None and failure.message.startswith(f"cannot write to {tmp_path}/shm: ")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self")
    failure = known_failure(RuntimeError("write failed: No space left on device"))
    assert failure is not None and failure.message.startswith("cannot write to /proc/self: ")
    assert failure.hint == "choose another folder for temporary files: `export TMPDIR=DIR`"
    monkeypatch.setattr(files, "_SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failure = known_failure(OSError(errno.ENOSPC, "No space left on device"))
    assert failure is not None and failure.message == "cannot write a file: [Errno 28] No space left on device"
    assert failure.hint is not None and f"free space in {tmp_path}, " in failure.hint


def test_other_errors_are_not_about_the_machine() -> None:
    assert known_failure(ValueError("wrong")) is None
    assert known_failure(OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/x")) is None
    error = UsageError("wrong")
    assert known_failure(error) is error
