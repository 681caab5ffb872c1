"""Open a file that a user named, with one clear `InputError` for everything that can be wrong with it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO, Literal

from omni_cli.errors import InputError

FileContent = Literal["image", "tensor", "audio", "video"]

# By name, because what Python's `mimetypes` knows depends on the machine.
_KINDS: dict[str, FileContent] = {
    ".npy": "tensor",
    **dict.fromkeys((".wav", ".flac", ".mp3", ".m4a", ".aac", ".ogg", ".oga", ".opus", ".aiff", ".caf"), "audio"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".3gp", ".webm", ".mkv", ".avi", ".ts", ".mpg", ".mpeg"), "video"),
}


def file_kind(path: Path) -> FileContent:
    """Return what a file holds by its name; an image if the name does not tell."""
    return _KINDS.get(path.suffix.lower(), "image")


def open_input(path: Path, what: str) -> BinaryIO:
    """Open a non-empty regular file for reading bytes.

    `what` names its role in messages ("audio file"). Raises `InputError` for a path that is missing, a
    folder, a pipe or device (which could block or never end), unreadable, or empty.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"the {what} `{path}` is a folder")
        if not stat.S_ISREG(mode):
            raise InputError(f"the {what} `{path}` is not a regular file")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot open the {what} `{path}`: {reason}") from error
    if path.stat().st_size == 0:
        file.close()
        raise InputError(f"the {what} `{path}` is empty (0 bytes)")
    return file
