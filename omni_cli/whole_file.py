"""Files written whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from omni_cli.errors import OutputError

_PROBE_BYTES = 4096


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that `path` has either its old content or all of the new. Raises `OSError` or `ValueError`."""
    temporary = path.with_name(f".omni-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full disk only then
        temporary.replace(path)
    except BaseException:  # including interrupts
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def check_writable(folder: Path) -> None:
    """Write a block to a folder and remove it, to fail before minutes of work. Raises `OSError` or `ValueError`."""
    probe = folder / f".omni-{secrets.token_hex(8)}.probe"
    try:
        write_whole(probe, bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError | ValueError, option: str = "--output-dir") -> OutputError:
    """The error of a file or folder below that of an option that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"cannot write `{path}`: {reason}", hint=f"choose another folder with `{option}`")
