"""Refuse JPEGs that pass over their pixels again and again: 33 bytes are enough for one more scan of all of them."""

from __future__ import annotations

import re

from omni_cli.errors import InputError

# An encoder writes about 10 scans; this is libtiff's limit.
MAX_SCANS = 100
# 0.7 s at most, if the scans hold next to nothing.
MAX_SCANNED_PIXELS = 2**30
# A marker that is neither a stuffed byte nor a restart within a scan.
_MARKER = re.compile(rb"\xff+([\x02-\xcf\xd9-\xfe])", re.DOTALL)
# Allowed at every size, so that most files are not searched for markers.
_FEW_SCANS = 12
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END = 0xDA, 0xD9


def check_scans(content: bytes, name: str) -> None:
    """Raise `InputError` for a JPEG of more scans than an encoder writes; `name` identifies it in messages."""
    if content.count(b"\xff\xda") <= _FEW_SCANS:
        return
    num_scans, num_pixels, position = 0, 0, 2
    while (match := _MARKER.search(content, position)) and (marker := match[1][0]) != _END:
        start = match.end()
        position = start + int.from_bytes(content[start : start + 2], "big")
        num_scans += marker == _SCAN
        if marker in _FRAMES:
            height, width = content[start + 3 : start + 5], content[start + 5 : start + 7]
            num_pixels = int.from_bytes(height, "big") * int.from_bytes(width, "big")
        if num_scans > MAX_SCANS or num_scans * num_pixels > MAX_SCANNED_PIXELS:
            raise InputError(
                f"the {name} has {num_scans} scans or more of {num_pixels:,} pixels; the maximum is {MAX_SCANS} scans "
                f"and {MAX_SCANNED_PIXELS >> 20} Mi pixels in all of them",
                hint="save it as a JPEG that is not progressive",
            )
