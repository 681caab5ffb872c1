"""Read tensors from NumPy files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.errors import InputError
from omni_cli.inputs.files import open_input

if TYPE_CHECKING:
    import numpy as np

MAX_TENSOR_BYTES = 1024 * 1024 * 1024
_DTYPES = ("uint8", "int16", "int32", "int64", "float32", "float64")


def load_tensor(path: Path) -> np.ndarray:
    """Read a `.npy` file of numbers, at most `MAX_TENSOR_BYTES`. Raises `InputError` for one that cannot be used."""
    import numpy as np

    with open_input(path, "NumPy file"):
        if path.stat().st_size > MAX_TENSOR_BYTES:
            raise InputError(f"the NumPy file `{path}` is larger than {MAX_TENSOR_BYTES // 2**20} MiB")
        try:
            # Mapped: a header that promises more than the file has would have memory allocated for it.
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
