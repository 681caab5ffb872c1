"""Choose a folder for temporary files whose name is short enough for sockets."""

from __future__ import annotations

import os
import tempfile

from omni_cli.errors import OmniError

# Linux's limit, in bytes.
_LONGEST_SOCKET = 107
_SHORT_FOLDER = "/tmp"


def temporary_folder(room: int) -> str:
    """Return a folder with room for socket names of `room` bytes, the leading slash included.

    Raises `OmniError` if the names of all writable folders are too long.
    """
    folder, longest = tempfile.gettempdir(), _LONGEST_SOCKET - room
    if len(os.fsencode(folder)) <= longest:
        return folder
    if os.access(_SHORT_FOLDER, os.W_OK | os.X_OK):
        return _SHORT_FOLDER
    raise OmniError(
        f"the name of the temporary folder is too long for sockets: {folder}",
        hint=f"set TMPDIR to a folder with a name of at most {longest} bytes",
    )
