"""Limits of the machine that any library may reach: open files, threads, folders that are full or read-only."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from omni_cli.errors import OmniError

_SHARED_MEMORY = "/dev/shm"
# A folder for temporary files that takes less is full.
_PROBE_BYTES = 1 << 16
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def allow_open_files(number: int) -> int:
    """Allow this process and its children this many open files, or as many as the system does; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft == resource.RLIM_INFINITY:
        return number
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)


def known_failure(error: BaseException) -> OmniError | None:
    """Return an exception as the error to show: itself, or the limit that it, or a cause of it, is about; else None."""
    if isinstance(error, OmniError):
        return error
    for cause in _with_causes(error):
        code = cause.errno if isinstance(cause, OSError) else None
        text = str(cause)
        if code in _NO_DESCRIPTOR or os.strerror(errno.EMFILE) in text:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return OmniError(f"too many open files: the limit is {limit}", hint="raise it: `ulimit -n 4096`")
        if isinstance(cause, BlockingIOError) or "can't start new thread" in text:
            hint = "raise it: `ulimit -u`, in a container `--pids-limit`"
            return OmniError("too many processes or threads for a limit of this machine", hint=hint)
        if code in _NOT_WRITABLE or any(os.strerror(number) in text for number in _NOT_WRITABLE):
            folder = _named_folder(cause) or _not_writable()
            return _folder_error(*folder) if folder else _unknown_folder(text)
    return None


def _folder_error(folder: str, reason: str) -> OmniError:
    if folder.startswith(_SHARED_MEMORY):
        hint = "mount it so that it can be written, in a container with more space: `--shm-size 1g`"
    elif Path(folder).is_relative_to(tempfile.gettempdir()):
        hint = "choose another folder for temporary files: `export TMPDIR=DIR`"
    else:
        hint = f"free space there, or make it writable: `df -h {shlex.quote(folder)}` shows its file system"
    return OmniError(f"cannot write to {folder}: {reason}", hint=hint)


def _unknown_folder(reason: str) -> OmniError:
    """Return the error if the file is not named, and its folder can be written again."""
    hint = f"free space in {tempfile.gettempdir()}, or choose another folder for temporary files: `export TMPDIR=DIR`"
    return OmniError(f"cannot write a file: {reason}", hint=hint)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _named_folder(error: BaseException) -> tuple[str, str] | None:
    """Return the folder of the file that the exception names, and why it cannot be written."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str) or not Path(error.filename).is_absolute():
        return None
    path = Path(error.filename)
    return str(path if path.is_dir() else path.parent), str(error.strerror)


def _not_writable() -> tuple[str, str] | None:
    """Return the first folder of those that libraries write to which takes no file, and why."""
    for folder in (tempfile.gettempdir(), _SHARED_MEMORY):
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                file.write(bytes(_PROBE_BYTES))
        except OSError as error:
            return folder, error.strerror or str(error)
    return None
