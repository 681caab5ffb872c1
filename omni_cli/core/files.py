"""Files written whole or not at all, folders for temporary files, and a machine's limits as errors.

Names of such folders are short enough for sockets, and they are removed even if the command is killed.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omni_cli.core.errors import OmniError, OutputError

_PROBE_BYTES = 4096
_SHARED_MEMORY = "/dev/shm"
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_TEMPORARY = re.compile(r"\.omni-[0-9a-f]{16}\.(tmp|probe)", re.ASCII)


def write_whole(path: Path, content: bytes, *, replaces: bool = True) -> None:
    """Write a file so that `path` has either its old content or all of the new. Raises `OSError` or `ValueError`.

    Unless it `replaces` a file, raises `FileExistsError` for one that is there.
    """
    temporary = path.with_name(f".omni-{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full disk only then
        if replaces:
            temporary.replace(path)
        else:
            _move_to_free(temporary, path)
    except BaseException:  # including interrupts
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _move_to_free(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        source.replace(path)
    else:
        source.unlink()


def check_writable(folder: Path) -> None:
    """Write a block to a folder and remove it, to fail before minutes of work. Raises `OSError` or `ValueError`."""
    probe = folder / f".omni-{os.urandom(8).hex()}.probe"
    try:
        write_whole(probe, bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)


def remove_left_behind(folder: Path) -> None:
    """Remove what processes that were killed had begun to write. Raises `OSError`."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def allow_open_files(number: int) -> int:
    """Allow this process and its children this many open files, or as many as the system does; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft == resource.RLIM_INFINITY:
        return number
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)


def reason_of(error: Exception) -> str:
    """Return the system's words for a failure."""
    if isinstance(error, FileExistsError):
        return "a file has the name of the folder"
    return getattr(error, "strerror", None) or str(error)


def cannot_write(path: Path, error: OSError | ValueError, option: str = "--output-dir") -> OutputError:
    """The error of a file or folder below that of an option that cannot be written."""
    return OutputError(f"cannot write `{path}`: {reason_of(error)}", hint=f"choose another folder with `{option}`")


# Linux's limit, in bytes.
_LONGEST_SOCKET = 107
_SHORT_FOLDER = "/tmp"
# A shell that removes a folder once its stdin closes. Processes that end with the command may still write there.
_REMOVER = 'read -r _; for _ in 1 2 3 4 5; do rm -rf -- "$0" && exit; sleep 1; done'


def temporary_folder(room: int) -> str:
    """Return a folder with room for socket names of `room` bytes, the leading slash included.

    Raises `OmniError` if no folder can be written, or the names of all that can are too long.
    """
    try:
        folder, longest = tempfile.gettempdir(), _LONGEST_SOCKET - room
    except FileNotFoundError as error:
        raise OmniError(f"cannot write temporary files: {error.strerror}", hint="set TMPDIR") from error
    if len(os.fsencode(folder)) <= longest:
        return folder
    if os.access(_SHORT_FOLDER, os.W_OK | os.X_OK):
        return _SHORT_FOLDER
    raise OmniError(
        f"the name of the temporary folder is too long for sockets: {folder}",
        hint=f"set TMPDIR to a folder with a name of at most {longest} bytes",
    )


@contextmanager
def scratch_folder(prefix: str, parent: str | Path | None = None, *, mode: int = 0o700) -> Iterator[Path]:
    """Create a folder with a name of its own, and remove it at the end, even if this process is killed.

    A folder that is renamed stays. Raises `OSError` if it cannot be created.
    """
    folder = Path(parent or temporary_folder(0)).absolute() / f"{prefix}{os.urandom(4).hex()}"
    remover, null = ["sh", "-c", _REMOVER, str(folder)], subprocess.DEVNULL
    try:
        # Inside `try`, because an interrupt may arrive just when the folder has been created.
        folder.mkdir(mode)
        # In a session of its own, so that what ends the command and its group does not end it.
        with subprocess.Popen(remover, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
            if folder := _named_folder(cause) or _not_writable():
                return _folder_error(*folder)
            # The file is not named, and its folder can be written again.
            where = f"free space in {tempfile.gettempdir()}, or choose another folder for temporary files"
            return OmniError(f"cannot write a file: {text}", hint=f"{where}: `export TMPDIR=DIR`")
    return None


def _folder_error(folder: str, reason: str) -> OmniError:
    if folder.startswith(_SHARED_MEMORY):
        hint = "mount it so that it can be written, in a container with more space: `--shm-size 1g`"
    elif Path(folder).is_relative_to(tempfile.gettempdir()):
        hint = "choose another folder for temporary files: `export TMPDIR=DIR`"
    else:
        hint = f"free space there, or make it writable: `df -h {shlex.quote(folder)}` shows its file system"
    return OmniError(f"cannot write to {folder}: {reason}", hint=hint)


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
                file.write(bytes(1 << 16))  # a folder that takes less is full
        except OSError as error:
            return folder, error.strerror or str(error)
    return None
