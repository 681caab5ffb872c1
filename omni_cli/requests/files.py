"""Open a file that a user named, with one clear `InputError` for everything that can be wrong with it.

Media are decoded in `requests/media`; tensors are read here.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from omni_cli.core.errors import InputError
from omni_cli.core.files import reason_of

if TYPE_CHECKING:
    import numpy as np

MAX_TENSOR_BYTES = 1024 * 1024 * 1024
_DTYPES = ("uint8", "int16", "int32", "int64", "float32", "float64")

FileContent = Literal["image", "tensor", "audio", "video"]

# By name, because what Python's `mimetypes` knows depends on the machine.
_KINDS: dict[str, FileContent] = {
    ".npy": "tensor",
    **dict.fromkeys((".wav", ".flac", ".mp3", ".m4a", ".aac", ".ogg", ".oga", ".opus", ".aiff", ".caf"), "audio"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".3gp", ".webm", ".mkv", ".avi", ".ts", ".mpg", ".mpeg"), "video"),
}


def file_kind(path: Path) -> FileContent:
    """Return the content of a file by its name; an image for any other name."""
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
        raise InputError(f"cannot open the {what} `{path}`: {reason_of(error)}") from error
    if path.stat().st_size == 0:
        file.close()
        raise InputError(f"the {what} `{path}` is empty (0 bytes)")
    return file


def load_tensor(path: Path) -> np.ndarray:
    """Read a `.npy` file of numbers, at most `MAX_TENSOR_BYTES`. Raises `InputError` for one that cannot be used."""
    import numpy as np

    with open_input(path, "NumPy file"):
        if path.stat().st_size > MAX_TENSOR_BYTES:
            raise InputError(f"the NumPy file `{path}` is larger than {MAX_TENSOR_BYTES // 2**20} MiB")
        try:
            # Mapped, because memory would be allocated for a header that promises more than the file has.
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:
            # Broken headers raise many things: ValueError, SyntaxError, TokenError, BadZipFile.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"cannot read the NumPy file `{path}`: {reason}", hint="write it with `numpy.save`"
            ) from error
    if not isinstance(array, np.ndarray) or array.dtype.name not in _DTYPES:
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"the NumPy file `{path}` holds {kind}; supported: {', '.join(_DTYPES)}")
    return np.array(array)
