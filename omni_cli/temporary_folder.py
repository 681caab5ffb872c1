"""Where temporary files go: the system's folder for them, unless sockets in it would have names that do not fit."""

from __future__ import annotations

import os
import tempfile

from omni_cli.errors import OmniError

# What Linux takes, in bytes.
_LONGEST_SOCKET = 107
_SHORT_FOLDER = "/tmp"


def temporary_folder(room: int) -> str:
    """A folder in which sockets can have names of `room` bytes, a slash in front included.

    Raises `OmniError` where only a folder with too long a name can be written to.
    """
    folder, longest = tempfile.gettempdir(), _LONGEST_SOCKET - room
    if len(os.fsencode(folder)) <= longest:
        return folder
    if os.access(_SHORT_FOLDER, os.W_OK | os.X_OK):
        return _SHORT_FOLDER
    raise OmniError(
        f"the folder for temporary files has a name that is too long for sockets: {folder}",
        hint=f"set TMPDIR to a folder with a name of at most {longest} bytes",
    )
