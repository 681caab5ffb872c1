"""Free memory that lies in small pieces: it goes to the process that is loaded first, which is slower for its life."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PIECE_BYTES = 128 * 1024  # smaller ones are filled
MAX_SHARE = 0.1
"""Limit of what is filled, as a share of the available memory: no variant fits into it that would not without."""

_BUDDYINFO = Path("/proc/buddyinfo")


@contextmanager
def filling(available_bytes: int, buddyinfo: Path = _BUDDYINFO) -> Iterator[int]:
    """Hold the free memory that is in small pieces; yield its bytes.

    Of two equal processes on a CPU, the one that was loaded first is 0.6 to 2 % slower otherwise: it gets the pieces
    that earlier programs left, and its neighbouring pages lie apart.
    """
    size = min(scattered_bytes(buddyinfo), int(available_bytes * MAX_SHARE)) // mmap.PAGESIZE * mmap.PAGESIZE
    if not size:
        yield 0
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page is no small piece
            held.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, size, mmap.PAGESIZE):
            held[offset] = 1
        yield size


def scattered_bytes(buddyinfo: Path) -> int:
    """Return the free bytes in small pieces by the kernel's list, which has the number of pieces of 1, 2, 4, ... pages
    for each zone of memory; 0 where there is none."""
    try:
        lines = buddyinfo.read_text().splitlines()
    except OSError:
        return 0
    orders = (PIECE_BYTES // mmap.PAGESIZE).bit_length() - 1
    zones = (line.split()[4 : 4 + orders] for line in lines)
    return sum(int(count) * mmap.PAGESIZE << order for zone in zones for order, count in enumerate(zone))
