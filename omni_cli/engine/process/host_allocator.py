"""Configure glibc's allocator for the large blocks that a model frees in every run."""

from __future__ import annotations

import ctypes
import os

# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_NEVER = 2**31 - 1

_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; return False if the C library has no such setting or the user set one.

    By default glibc returns large blocks when they are freed, and the next allocation pays for their pages again. How
    often depends on the layout of the heap, so two processes of the same stage differ in speed for their whole lives:
    12 loads of `tiny-image` were up to 12 % apart (standard deviation 4 %), with this less than 1.2 %, and 4 % faster
    on average. The memory peak is the same; it is only kept.
    """
    if any(name in os.environ for name in _USERS_OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting one of them disables adaptation of the other, so both are set.
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
