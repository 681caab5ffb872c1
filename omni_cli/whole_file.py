"""Files written whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


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
